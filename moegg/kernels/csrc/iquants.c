/* iquants.c - what the codes of ggml's codebook rows stand for. Read only: their encoders search codebooks and are not here.
 *
 * A group of 8 elements (4 in iq3) is one entry of a grid, under signs of its own: eight bits, or seven and their parity.
 * Scales are odd numbers 2 s + 1; iq1 moves its values -1, 0, 1 by an eighth up or down, so its codes are eighths.
 * Source of these facts: ggml-quants.c (dequantize_row_iq*), gguf-py quants.py.
 */
#include "fp16.h"
#include "iq_grids.h"
#include "iquants.h"

static uint8_t with_parity(uint32_t s) { return (uint8_t)(s & 127) | (uint8_t)(__builtin_parity(s & 127) << 7); }

/* One entry of an iq2 grid, of an iq3 grid (half: the lower or upper four of eight elements), of the iq1 grid. */
static void put_iq2(uint16_t entry, uint8_t signs, int8_t *c) {
    static const int8_t value[4] = {8, 25, 43, 43};
    for (int i = 0; i < 8; i++) c[i] = (int8_t)(value[entry >> 2 * i & 3] * (signs >> i & 1 ? -1 : 1));
}
static void put_iq3(uint16_t entry, const int8_t *value, uint8_t signs, int8_t *c) {
    for (int i = 0; i < 4; i++) c[i] = (int8_t)(value[entry >> 3 * i & 7] * (signs >> i & 1 ? -1 : 1));
}
static void put_iq1(uint16_t entry, int down, int8_t *c) {
    for (int i = 0; i < 8; i++) c[i] = (int8_t)(8 * ((entry >> 2 * i & 3) - 1) + (down ? -1 : 1));
}

void mg_iq_iq2_xxs(const mg_iq2_xxs *b, mg_iq *q) {
    q->d = mg_f16_to_f32(b->d) * 0.125f;
    for (int j = 0; j < 8; j++) {
        const uint8_t *u = (const uint8_t *)(b->qs + 4 * j);
        const uint32_t s = mg_ld32(u + 4);
        q->sc[2 * j] = q->sc[2 * j + 1] = (int8_t)(2 * (s >> 28) + 1);
        for (int l = 0; l < 4; l++) put_iq2(mg_iq2_xxs_grid[u[l]], with_parity(s >> 7 * l), q->c + 32 * j + 8 * l);
    }
}

void mg_iq_iq2_xs(const mg_iq2_xs *b, mg_iq *q) {
    q->d = mg_f16_to_f32(b->d) * 0.125f;
    for (int h = 0; h < 16; h++) q->sc[h] = (int8_t)(2 * (b->scales[h / 2] >> h % 2 * 4 & 15) + 1);
    for (int g = 0; g < 32; g++) put_iq2(mg_iq2_xs_grid[b->qs[g] & 511], with_parity(b->qs[g] >> 9), q->c + 8 * g);
}

void mg_iq_iq2_s(const mg_iq2_s *b, mg_iq *q) {
    q->d = mg_f16_to_f32(b->d) * 0.125f;
    for (int h = 0; h < 16; h++) q->sc[h] = (int8_t)(2 * (b->scales[h / 2] >> h % 2 * 4 & 15) + 1);
    for (int g = 0; g < 32; g++)
        put_iq2(mg_iq2_s_grid[b->qs[g] | (b->qh[g / 4] >> g % 4 * 2 & 3) << 8], b->signs[g], q->c + 8 * g);
}

void mg_iq_iq3_xxs(const mg_iq3_xxs *b, mg_iq *q) {
    static const int8_t value[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    q->d = mg_f16_to_f32(b->d) * 0.25f;
    for (int j = 0; j < 8; j++) {
        const uint32_t s = mg_ld32(b->signs + 4 * j);
        q->sc[2 * j] = q->sc[2 * j + 1] = (int8_t)(2 * (s >> 28) + 1);
        for (int k = 0; k < 8; k++)
            put_iq3(mg_iq3_xxs_grid[b->qs[8 * j + k]], value, with_parity(s >> k / 2 * 7) >> k % 2 * 4, q->c + 32 * j + 4 * k);
    }
}

void mg_iq_iq3_s(const mg_iq3_s *b, mg_iq *q) {
    static const int8_t value[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    q->d = mg_f16_to_f32(b->d);
    for (int h = 0; h < 16; h++) q->sc[h] = (int8_t)(2 * (b->scales[h / 4] >> h / 2 % 2 * 4 & 15) + 1);
    for (int k = 0; k < 64; k++)
        put_iq3(mg_iq3_s_grid[b->qs[k] | (b->qh[k / 8] >> k % 8 & 1) << 8], value, b->signs[k / 2] >> k % 2 * 4, q->c + 4 * k);
}

void mg_iq_iq1_s(const mg_iq1_s *b, mg_iq *q) {
    q->d = mg_f16_to_f32(b->d) * 0.125f;
    for (int g = 0; g < 32; g++) {
        const uint16_t h = b->qh[g / 4];
        q->sc[g / 2] = (int8_t)(2 * (h >> 12 & 7) + 1);
        put_iq1(mg_iq1_grid[b->qs[g] | (h >> g % 4 * 3 & 7) << 8], h >> 15, q->c + 8 * g);
    }
}

/* The f16 scale is in the upper four bits of the four words of scales. */
void mg_iq_iq1_m(const mg_iq1_m *b, mg_iq *q) {
    const uint16_t *s = b->scales;
    q->d = mg_f16_to_f32((uint16_t)(s[0] >> 12 | (s[1] >> 12) << 4 | (s[2] >> 12) << 8 | (s[3] >> 12) << 12)) * 0.125f;
    for (int g = 0; g < 32; g++) {
        const int h = b->qh[g / 2] >> g % 2 * 4 & 15;
        q->sc[g / 2] = (int8_t)(2 * (s[g / 8] >> g / 2 % 4 * 3 & 7) + 1);
        put_iq1(mg_iq1_grid[b->qs[g] | (h & 7) << 8], h >> 3, q->c + 8 * g);
    }
}
