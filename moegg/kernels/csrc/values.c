/* values.c - blocks to floats: what the codes of every row of quants.def mean.
 *
 * The values equal ggml's bit for bit, in the order of operations of its gguf package (gguf-py quants.py): f32, rounded after each
 * step. Whatever the bytes are, the result is defined and nothing beyond the row is read.
 */
#include "fp16.h"
#include "kernels.h"
#include "quants.h"

#define DEQUANT(name) static void dequant_##name(const mg_##name *b, float *x, int64_t n)

static void dequant_f32(const mg_f32 *b, float *x, int64_t n) { memcpy(x, b, (size_t)n * 4); }
static void dequant_f16(const mg_f16 *b, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = mg_f16_to_f32(b[i]);
}
static void dequant_bf16(const mg_bf16 *b, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = mg_bf16_to_f32(b[i]);
}

/* --- blocks of 32 ------------------------------------------------------------------------------------------------------- */

static int nibble(const uint8_t *qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
static int five(const uint8_t *qs, const uint8_t *qh, int i) { return nibble(qs, i) | (int)(mg_ld32(qh) >> i & 1) << 4; }

DEQUANT(q4_0) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_f16_to_f32(b->d) * (nibble(b->qs, i) - 8);
}

DEQUANT(q4_1) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_f16_to_f32(b->d) * nibble(b->qs, i) + mg_f16_to_f32(b->m);
}

DEQUANT(q5_0) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_f16_to_f32(b->d) * (five(b->qs, b->qh, i) - 16);
}

DEQUANT(q5_1) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_f16_to_f32(b->d) * five(b->qs, b->qh, i) + mg_f16_to_f32(b->m);
}

DEQUANT(q8_0) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = b->qs[i] * mg_f16_to_f32(b->d);
}

/* --- super-blocks of 256 ------------------------------------------------------------------------------------------------ */

/* Bits 2k, 2k + 1 of a byte of 64, where k is the 32-element sub-block within its half. */
static int crumb(const uint8_t *qs, int e) { return qs[e / 128 * 32 + e % 32] >> e / 32 % 4 * 2 & 3; }

DEQUANT(q2_k) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 256; e++) {
            const float d = mg_f16_to_f32(b->d) * (b->scales[e / 16] & 15), m = mg_f16_to_f32(b->dmin) * (b->scales[e / 16] >> 4);
            *x++ = d * crumb(b->qs, e) - m;
        }
}

/* The 6-bit scales: 16 nibbles in 8 bytes, low ones first, then four bytes that hold bits 4 and 5 of every fourth scale. */
DEQUANT(q3_k) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 256; e++) {
            const uint8_t *s = b->scales;
            const int i = e / 16, sc = ((s[i % 8] >> i / 8 * 4 & 15) | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32;
            *x++ = mg_f16_to_f32(b->d) * sc * (crumb(b->qs, e) - 4 * !(b->hmask[e % 32] >> e / 32 & 1));
        }
}

/* 6-bit scale and minimum of sub-block j in 12 bytes: four low halves, four low halves of minima, then the rest. */
static void get_scale_min(const uint8_t *s, int j, int *sc, int *m) {
    *sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *m = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

DEQUANT(q4_k) {
    for (; n > 0; n--, b++)
        for (int j = 0, sc, m; j < 8; j++) {
            get_scale_min(b->scales, j, &sc, &m);
            const float d = mg_f16_to_f32(b->d) * sc, dm = mg_f16_to_f32(b->dmin) * m;
            for (int i = 0; i < 32; i++) *x++ = d * (b->qs[j / 2 * 32 + i] >> j % 2 * 4 & 15) - dm;
        }
}

DEQUANT(q5_k) {
    for (; n > 0; n--, b++)
        for (int j = 0, sc, m; j < 8; j++) {
            get_scale_min(b->scales, j, &sc, &m);
            const float d = mg_f16_to_f32(b->d) * sc, dm = mg_f16_to_f32(b->dmin) * m;
            for (int i = 0; i < 32; i++) *x++ = d * ((b->qs[j / 2 * 32 + i] >> j % 2 * 4 & 15) | (b->qh[i] >> j & 1) << 4) - dm;
        }
}

/* Element e = 128 h + 32 k + i: nibble k / 2 of ql[64 h + 32 (k % 2) + i], bits 2k of qh[32 h + i]. */
DEQUANT(q6_k) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 256; e++) {
            const int h = e / 128, k = e / 32 % 4, i = e % 32;
            const int q = (b->ql[64 * h + 32 * (k % 2) + i] >> k / 2 * 4 & 15) | (b->qh[32 * h + i] >> 2 * k & 3) << 4;
            *x++ = mg_f16_to_f32(b->d) * b->scales[e / 16] * (q - 32);
        }
}

/* --- by id -------------------------------------------------------------------------------------------------------------- */

void mg_dequant_row(int quant, const void *src, float *dst, int64_t cols) {
    switch (quant) {
#define Q(id, name, elems, bytes, act, units) case id: dequant_##name(src, dst, cols / elems); break;
#include "quants.def"
#undef Q
    }
}
