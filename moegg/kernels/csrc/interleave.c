/* interleave.c - row-major rows to groups of MG_GROUP rows and back (layout: moegg/quants.py, formats/FORMAT.md).
 *
 * Within a group: block column by block column, unit by unit, the unit of all 16 rows side by side. A float row counts as one
 * long block of 4-byte units. Rows past the end are zero. A bijection: deinterleave(interleave(x)) == x.
 */
#include <string.h>

#include "kernels.h"

typedef struct { size_t size, count; } run;                             /* `count` units of `size` bytes */
typedef struct { run runs[4]; int n_runs; int64_t n_blocks; size_t block_bytes, row_bytes, group_bytes; } cut;

static cut cut_of(int quant, int64_t cols) {
    const mg_quant *q = mg_quant_get(quant);
    cut c = {.n_blocks = cols / q->block_elems, .block_bytes = q->block_bytes, .row_bytes = mg_row_bytes(quant, cols),
             .group_bytes = mg_group_bytes(quant, cols)};
    if (q->block_elems == 1) {
        c.n_blocks = 1;
        c.block_bytes = c.group_bytes / MG_GROUP;
        c.runs[c.n_runs++] = (run){4, c.block_bytes / 4};
        return c;
    }
    for (const char *s = q->units; *s; s += *s == ' ') {                /* "2x1 4x35" */
        size_t size = *s++ - '0', count = 0;
        for (s++; *s && *s != ' '; s++) count = count * 10 + (*s - '0');
        c.runs[c.n_runs++] = (run){size, count};
    }
    return c;
}

/* One row of one group, either way. A padded last float unit moves only the bytes that the row has. */
static void move_row(const cut *c, uint8_t *group, int r, uint8_t *row, int in) {
    size_t left = c->row_bytes;
    for (int64_t b = 0; b < c->n_blocks; b++)
        for (int k = 0; k < c->n_runs; k++) {
            const size_t size = c->runs[k].size;
            uint8_t *lane = group + size * r;
            for (size_t u = 0; u < c->runs[k].count; u++, lane += MG_GROUP * size) {
                if (size == 4 && left >= 4) in ? memcpy(lane, row, 4) : memcpy(row, lane, 4);
                else if (size >= 2 && left >= 2) in ? memcpy(lane, row, 2) : memcpy(row, lane, 2);
                else if (size == 1) in ? (*lane = *row) : (*row = *lane);
                row += size;
                left -= size < left ? size : left;
            }
            group += MG_GROUP * size * c->runs[k].count;
        }
}

void mg_interleave(int quant, const void *src, int64_t rows, int64_t cols, void *dst) {
    cut c = cut_of(quant, cols);
    memset(dst, 0, (size_t)((rows + MG_GROUP - 1) / MG_GROUP) * c.group_bytes);
    for (int64_t r = 0; r < rows; r++)
        move_row(&c, (uint8_t *)dst + r / MG_GROUP * c.group_bytes, r % MG_GROUP, (uint8_t *)src + r * c.row_bytes, 1);
}

void mg_deinterleave(int quant, const void *src, int64_t rows, int64_t cols, void *dst) {
    cut c = cut_of(quant, cols);
    for (int64_t r = 0; r < rows; r++)
        move_row(&c, (uint8_t *)src + r / MG_GROUP * c.group_bytes, r % MG_GROUP, (uint8_t *)dst + r * c.row_bytes, 0);
}

/* Block by block through a buffer of one block, so that no row-sized scratch is needed. */
void mg_dequant_interleaved_row(int quant, const void *matrix, int64_t row, int64_t cols, float *dst) {
    const mg_quant *q = mg_quant_get(quant);
    const int pair = q->block_elems == 1;                               /* two elements, or one f32, per 4-byte unit */
    const int step = pair ? 4 / q->block_bytes : q->block_elems;
    cut c = cut_of(quant, pair ? step : q->block_elems);
    const uint8_t *group = (const uint8_t *)matrix + row / MG_GROUP * mg_group_bytes(quant, cols);
    uint8_t block[256];
    for (int64_t i = 0; i < cols; i += step, group += c.group_bytes) {
        move_row(&c, (uint8_t *)group, row % MG_GROUP, block, 0);
        mg_dequant_row(quant, block, dst + i, cols - i < step ? cols - i : step);
    }
}
