/* vec_generic.c - plain C kernels for every row of quants.def: the definition of correct for all faster levels.
 *
 * A group kernel walks the block columns of 16 interleaved rows; y[t] is its accumulator. Per 32 elements: the codes are
 * unpacked once, for each activation row the integer dot of every lane is exact, then one or two fused multiply-adds follow in
 * an order that is part of the definition (kernels.h). Names: w block column, c codes, x activations, s exact sums of x.
 */
#include "fp16.h"
#include "iquants.h"
#include "kernels.h"
#include "quants.h"

enum { G = MG_GROUP };

static float f16_at(const uint8_t *w, int r) { return mg_f16_to_f32(mg_ld16(w + 2 * r)); }

static void clear(float *const *y, int n) {
    for (int t = 0; t < n; t++)
        for (int r = 0; r < G; r++) y[t][r] = 0;
}

/* --- codes: c[u] holds elements 4u..4u+3 of all 16 rows, row by row, as they lie in a unit ----------------------------- */

typedef int16_t codes[8][4 * G];

/* 16 bytes of nibbles per row: low ones are elements 0..15, high ones 16..31. */
static void nibbles(const uint8_t *u, codes c) {
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4 * G; k++) {
            c[i][k] = u[4 * G * i + k] & 15;
            c[i + 4][k] = u[4 * G * i + k] >> 4;
        }
}

/* Bit i of a row's 32-bit unit is bit 4 of element i. */
static void fifth_bits(const uint8_t *u, codes c) {
    for (int r = 0; r < G; r++) {
        uint32_t h = mg_ld32(u + 4 * r);
        for (int i = 0; i < 32; i++) c[i / 4][4 * r + i % 4] |= (h >> i & 1) << 4;
    }
}

/* 32 bytes of nibbles per row shared by two sub-blocks: `shift` 0 or 4 picks one. */
static void half_nibbles(const uint8_t *u, int shift, codes c) {
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4 * G; k++) c[i][k] = u[4 * G * i + k] >> shift & 15;
}

/* `mask` of each byte, shifted right by `shift`, becomes bit 4 and up. */
static void high_bits(const uint8_t *u, int shift, int mask, codes c) {
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4 * G; k++) c[i][k] |= (u[4 * G * i + k] >> shift & mask) << 4;
}

/* Exact dot of codes first..last-1 (in units) with x, per row. */
static void dot(const codes c, const int8_t *x, int first, int last, int32_t *isum) {
    for (int r = 0; r < G; r++) isum[r] = 0;
    for (int u = first; u < last; u++)
        for (int r = 0; r < G; r++)
            isum[r] += c[u][4 * r] * x[4 * u] + c[u][4 * r + 1] * x[4 * u + 1] +
                       c[u][4 * r + 2] * x[4 * u + 2] + c[u][4 * r + 3] * x[4 * u + 3];
}

/* y += d * dx * (isum - zero * s) and, with m, y += m * (dx * s): a sub-block of one scale. */
static void add_block(const codes c, int zero, const float *d, const float *m, int64_t cols, int64_t b, const void *const *a,
                      int n, float *const *y) {
    for (int t = 0; t < n; t++) {
        const mg_a8 *x = mg_a8_blocks(a[t], cols) + b;
        int32_t isum[G];
        dot(c, mg_a8_q(a[t]) + 32 * b, 0, 8, isum);
        for (int r = 0; r < G; r++) y[t][r] = mg_fma(d[r] * x->d, (float)(isum[r] - zero * x->s), y[t][r]);
        for (int r = 0; m && r < G; r++) y[t][r] = mg_fma(m[r], x->ds, y[t][r]);
    }
}

/* --- blocks of 32 ------------------------------------------------------------------------------------------------------- */

#define GROUP(name) static void group_##name(const uint8_t *w, int64_t cols, const void *const *a, int n, float *const *y)

GROUP(q4_0) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b++, w += 18 * G) {
        codes c;
        float d[G];
        nibbles(w + 2 * G, c);
        for (int r = 0; r < G; r++) d[r] = f16_at(w, r);
        add_block(c, 8, d, NULL, cols, b, a, n, y);
    }
}

GROUP(q4_1) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b++, w += 20 * G) {
        codes c;
        float d[G], m[G];
        nibbles(w + 4 * G, c);
        for (int r = 0; r < G; r++) d[r] = f16_at(w, r), m[r] = f16_at(w + 2 * G, r);
        add_block(c, 0, d, m, cols, b, a, n, y);
    }
}

GROUP(q5_0) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b++, w += 22 * G) {
        codes c;
        float d[G];
        nibbles(w + 6 * G, c);
        fifth_bits(w + 2 * G, c);
        for (int r = 0; r < G; r++) d[r] = f16_at(w, r);
        add_block(c, 16, d, NULL, cols, b, a, n, y);
    }
}

GROUP(q5_1) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b++, w += 24 * G) {
        codes c;
        float d[G], m[G];
        nibbles(w + 8 * G, c);
        fifth_bits(w + 4 * G, c);
        for (int r = 0; r < G; r++) d[r] = f16_at(w, r), m[r] = f16_at(w + 2 * G, r);
        add_block(c, 0, d, m, cols, b, a, n, y);
    }
}

GROUP(q8_0) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b++, w += 34 * G) {
        codes c;
        float d[G];
        for (int i = 0; i < 8; i++)
            for (int k = 0; k < 4 * G; k++) c[i][k] = (int8_t)w[2 * G + 4 * G * i + k];
        for (int r = 0; r < G; r++) d[r] = f16_at(w, r);
        add_block(c, 0, d, NULL, cols, b, a, n, y);
    }
}

/* The codes become the values of a grid. */
static void look_up(const int8_t *grid, codes c) {
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4 * G; k++) c[i][k] = grid[c[i][k]];
}

GROUP(iq4_nl) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b++, w += 18 * G) {
        codes c;
        float d[G];
        nibbles(w + 2 * G, c);
        look_up(mg_iq4_grid, c);
        for (int r = 0; r < G; r++) d[r] = f16_at(w, r);
        add_block(c, 0, d, NULL, cols, b, a, n, y);
    }
}

GROUP(mxfp4) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b++, w += 17 * G) {
        codes c;
        float d[G];
        nibbles(w + G, c);
        look_up(mg_fp4_grid, c);
        for (int r = 0; r < G; r++) d[r] = mg_e8m0_half(w[r]);
        add_block(c, 0, d, NULL, cols, b, a, n, y);
    }
}

/* --- super-blocks of 256 ------------------------------------------------------------------------------------------------ */

/* 6-bit scale and minimum of sub-block j: d * sc and -(dmin * m). u: the three units of scales. */
static void scale_min(const uint8_t *w, int j, float *d, float *m) {
    for (int r = 0; r < G; r++) {
        const uint8_t *s = w + 4 * G + 4 * r, *t = s + 4 * G, *v = s + 8 * G;     /* scale bytes 0..3, 4..7, 8..11 */
        int k = j & 3, sc = j < 4 ? s[k] & 63 : (v[k] & 15) | (s[k] >> 6) << 4;
        int mn = j < 4 ? t[k] & 63 : (v[k] >> 4) | (t[k] >> 6) << 4;
        d[r] = f16_at(w, r) * sc;
        m[r] = -(f16_at(w + 2 * G, r) * mn);
    }
}

/* Two bits of each of 32 bytes per row, shared by four sub-blocks. */
static void crumbs(const uint8_t *u, int shift, codes c) {
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4 * G; k++) c[i][k] = u[4 * G * i + k] >> shift & 3;
}

/* y += d * dx * sum over the two halves of sc * (isum - zero * sum of x): integers below 2^24, exact as a float. */
static void add_halves(const codes c, int zero, const float *d, int32_t sc[2][G], int64_t cols, int64_t b, const void *const *a,
                       int n, float *const *y) {
    for (int t = 0; t < n; t++) {
        const mg_a8 *x = mg_a8_blocks(a[t], cols) + b;
        int32_t lo[G], hi[G];
        dot(c, mg_a8_q(a[t]) + 32 * b, 0, 4, lo);
        dot(c, mg_a8_q(a[t]) + 32 * b, 4, 8, hi);
        for (int r = 0; r < G; r++) {
            const int32_t isum = sc[0][r] * (lo[r] - zero * x->half[0]) + sc[1][r] * (hi[r] - zero * x->half[1]);
            y[t][r] = mg_fma(d[r] * x->d, (float)isum, y[t][r]);
        }
    }
}

GROUP(q2_k) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b += 8, w += 84 * G)
        for (int j = 0; j < 8; j++) {
            codes c;
            float d[G], m[G];
            int32_t sc[2][G], mn[2][G];
            crumbs(w + 16 * G + 32 * G * (j / 4), j % 4 * 2, c);
            for (int r = 0; r < G; r++) {
                d[r] = f16_at(w + 80 * G, r), m[r] = f16_at(w + 82 * G, r);
                for (int h = 0; h < 2; h++) {
                    const int s = w[4 * G * (j / 2) + 4 * r + j % 2 * 2 + h];
                    sc[h][r] = s & 15, mn[h][r] = s >> 4;
                }
            }
            add_halves(c, 0, d, sc, cols, b + j, a, n, y);
            for (int t = 0; t < n; t++) {
                const mg_a8 *x = mg_a8_blocks(a[t], cols) + b + j;
                for (int r = 0; r < G; r++) {
                    const int32_t isum = mn[0][r] * x->half[0] + mn[1][r] * x->half[1];
                    y[t][r] = mg_fma(-(m[r] * x->d), (float)isum, y[t][r]);
                }
            }
        }
}

GROUP(q3_k) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b += 8, w += 110 * G)
        for (int j = 0; j < 8; j++) {
            codes c;
            float d[G];
            int32_t sc[2][G];
            crumbs(w + 32 * G + 32 * G * (j / 4), j % 4 * 2, c);
            for (int i = 0; i < 8; i++)
                for (int k = 0; k < 4 * G; k++) c[i][k] |= (w[4 * G * i + k] >> j & 1) << 2;
            for (int r = 0; r < G; r++) {
                d[r] = f16_at(w + 108 * G, r);
                for (int h = 0; h < 2; h++) {                                      /* scale i of 16: quants.h, values.c */
                    const int i = 2 * j + h;
                    const uint8_t *low = w + 96 * G + i % 8 / 4 * 4 * G + 4 * r, *high = w + 104 * G + 4 * r;
                    sc[h][r] = ((low[i % 4] >> i / 8 * 4 & 15) | (high[i % 4] >> i / 4 * 2 & 3) << 4) - 32;
                }
            }
            add_halves(c, 4, d, sc, cols, b + j, a, n, y);
        }
}

GROUP(q4_k) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b += 8, w += 144 * G)
        for (int j = 0; j < 8; j++) {
            codes c;
            float d[G], m[G];
            half_nibbles(w + 16 * G + 32 * G * (j / 2), j % 2 * 4, c);
            scale_min(w, j, d, m);
            add_block(c, 0, d, m, cols, b + j, a, n, y);
        }
}

GROUP(q5_k) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b += 8, w += 176 * G)
        for (int j = 0; j < 8; j++) {
            codes c;
            float d[G], m[G];
            half_nibbles(w + 48 * G + 32 * G * (j / 2), j % 2 * 4, c);
            high_bits(w + 16 * G, j, 1, c);
            scale_min(w, j, d, m);
            add_block(c, 0, d, m, cols, b + j, a, n, y);
        }
}

GROUP(q6_k) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b += 8, w += 210 * G)
        for (int j = 0; j < 8; j++) {
            codes c;
            float d[G];
            int32_t sc[2][G];
            half_nibbles(w + 64 * G * (j / 4) + 32 * G * (j % 2), j % 4 / 2 * 4, c);
            high_bits(w + 128 * G + 32 * G * (j / 4), j % 4 * 2, 3, c);
            for (int r = 0; r < G; r++) {
                d[r] = f16_at(w + 208 * G, r);
                for (int h = 0; h < 2; h++) sc[h][r] = (int8_t)w[192 * G + 4 * G * (j / 2) + 4 * r + j % 2 * 2 + h];
            }
            add_halves(c, 32, d, sc, cols, b + j, a, n, y);
        }
}

GROUP(iq4_xs) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b += 8, w += 136 * G)
        for (int j = 0; j < 8; j++) {
            codes c;
            float d[G];
            nibbles(w + 8 * G + 16 * G * j, c);
            look_up(mg_iq4_grid, c);
            for (int r = 0; r < G; r++) {
                const int sc = (mg_ld32(w + 4 * G + 4 * r) >> 4 * j & 15) | (mg_ld16(w + 2 * G + 2 * r) >> 2 * j & 3) << 4;
                d[r] = f16_at(w, r) * (sc - 32);
            }
            add_block(c, 0, d, NULL, cols, b + j, a, n, y);
        }
}

GROUP(tq2_0) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b += 8, w += 66 * G)
        for (int j = 0; j < 8; j++) {
            codes c;
            float d[G];
            crumbs(w + 32 * G * (j / 4), j % 4 * 2, c);
            for (int r = 0; r < G; r++) d[r] = f16_at(w + 64 * G, r);
            add_block(c, 1, d, NULL, cols, b + j, a, n, y);
        }
}

/* Trit e of row r: quants.h, values.c. */
static int trit_at(const uint8_t *w, int r, int e) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const int f = e - 160, g = e - 240;
    const int at = f < 0 ? e % 32 : g < 0 ? 32 + f % 16 : 48 + g % 4, k = f < 0 ? e / 32 : g < 0 ? f / 16 : g / 4;
    return (uint8_t)(w[at / 4 * 4 * G + 4 * r + at % 4] * power[k]) * 3 >> 8;
}

GROUP(tq1_0) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b += 8, w += 54 * G)
        for (int j = 0; j < 8; j++) {
            codes c;
            float d[G];
            for (int i = 0; i < 32; i++)
                for (int r = 0; r < G; r++) c[i / 4][4 * r + i % 4] = (int16_t)trit_at(w, r, 32 * j + i);
            for (int r = 0; r < G; r++) d[r] = f16_at(w + 52 * G, r);
            add_block(c, 1, d, NULL, cols, b + j, a, n, y);
        }
}

/* Row r of a block column: FIRST bytes in a unit of their own, then units of four. */
static void block_of(const uint8_t *w, int r, int bytes, int first, void *block) {
    memcpy(block, w + first * r, first);
    w += first * G + 4 * r;
    for (int i = first; i < bytes; i += 4, w += 4 * G) memcpy((char *)block + i, w, 4);
}

#define CODEBOOK_GROUP(name, BYTES, FIRST)                                                          \
    GROUP(name) {                                                                                   \
        clear(y, n);                                                                                \
        for (int64_t b = 0; b < cols / 32; b += 8, w += BYTES * G) {                                \
            mg_iq q[G];                                                                             \
            mg_##name block;                                                                        \
            for (int r = 0; r < G; r++) {                                                           \
                block_of(w, r, BYTES, FIRST, &block);                                               \
                mg_iq_##name(&block, &q[r]);                                                        \
            }                                                                                       \
            for (int j = 0; j < 8; j++) {                                                           \
                codes c;                                                                            \
                float d[G];                                                                         \
                int32_t sc[2][G];                                                                   \
                for (int r = 0; r < G; r++) {                                                       \
                    d[r] = q[r].d, sc[0][r] = q[r].sc[2 * j], sc[1][r] = q[r].sc[2 * j + 1];        \
                    for (int i = 0; i < 32; i++) c[i / 4][4 * r + i % 4] = q[r].c[32 * j + i];      \
                }                                                                                   \
                add_halves(c, 0, d, sc, cols, b + j, a, n, y);                                      \
            }                                                                                       \
        }                                                                                           \
    }

CODEBOOK_GROUP(iq2_xxs, 66, 2)
CODEBOOK_GROUP(iq2_xs, 74, 2)
CODEBOOK_GROUP(iq2_s, 82, 2)
CODEBOOK_GROUP(iq3_xxs, 98, 2)
CODEBOOK_GROUP(iq3_s, 110, 2)
CODEBOOK_GROUP(iq1_s, 50, 2)
CODEBOOK_GROUP(iq1_m, 56, 0)

/* --- blocks of 64 and 128 ------------------------------------------------------------------------------------------------- */

/* Two scales per 32 elements, each with a fused multiply-add of its own. */
GROUP(nvfp4) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b++) {
        const uint8_t *u = w + b / 2 * 36 * G;
        codes c;
        for (int i = 0; i < 32; i++)
            for (int r = 0; r < G; r++) {
                const int at = b % 2 * 16 + i / 16 * 8 + i % 8;
                c[i / 4][4 * r + i % 4] = mg_fp4_grid[u[4 * G * (1 + at / 4) + 4 * r + at % 4] >> i % 16 / 8 * 4 & 15];
            }
        for (int t = 0; t < n; t++)
            for (int h = 0; h < 2; h++) {
                int32_t isum[G];
                dot(c, mg_a8_q(a[t]) + 32 * b, 4 * h, 4 * h + 4, isum);
                for (int r = 0; r < G; r++) {
                    const float d = mg_ue4m3_half(u[4 * r + b % 2 * 2 + h]);
                    y[t][r] = mg_fma(d * mg_a8_blocks(a[t], cols)[b].d, (float)isum[r], y[t][r]);
                }
            }
    }
}

GROUP(ternary) {
    clear(y, n);
    for (int64_t b = 0; b < cols / 32; b += 4, w += 34 * G)
        for (int j = 0; j < 4; j++) {
            codes c;
            float d[G];
            crumbs(w + 2 * G, 2 * j, c);
            for (int r = 0; r < G; r++) d[r] = mg_bf16_to_f32(mg_ld16(w + 2 * r));
            add_block(c, 1, d, NULL, cols, b + j, a, n, y);
        }
}

#define MLX_GROUP(name, WIDEN)                                                                                        \
    GROUP(name) {                                                                                                     \
        clear(y, n);                                                                                                  \
        for (int64_t b = 0; b < cols / 32; b += 2, w += 36 * G)                                                       \
            for (int j = 0; j < 2; j++) {                                                                             \
                codes c;                                                                                              \
                float d[G], m[G];                                                                                     \
                half_nibbles(w + 4 * G, 4 * j, c);                                                                    \
                for (int r = 0; r < G; r++) d[r] = WIDEN(mg_ld16(w + 2 * r)), m[r] = WIDEN(mg_ld16(w + 2 * G + 2 * r)); \
                add_block(c, 0, d, m, cols, b + j, a, n, y);                                                          \
            }                                                                                                         \
    }

MLX_GROUP(mlx4, mg_bf16_to_f32)
MLX_GROUP(mlx4_f16, mg_f16_to_f32)

/* --- floats: even and odd elements in two sums ---------------------------------------------------------------------------- */

static void add_pairs(const float (*w)[2], int64_t pair, const void *const *a, int n, float *const *even, float (*odd)[G]) {
    for (int t = 0; t < n; t++) {
        const float *x = (const float *)a[t] + 2 * pair;
        for (int r = 0; r < G; r++) {
            even[t][r] = mg_fma(w[r][0], x[0], even[t][r]);
            odd[t][r] = mg_fma(w[r][1], x[1], odd[t][r]);
        }
    }
}

/* `LOAD` fills v[16][2] with the two elements of pair p; activation rows are taken eight at a time for a bounded `odd`. */
#define FLOAT_GROUP(name, LOAD)                                                     \
    GROUP(name) {                                                                   \
        for (; n > 0; n -= 8, a += 8, y += 8) {                                     \
            const int m = n < 8 ? n : 8;                                            \
            float odd[8][G] = {{0}}, v[G][2];                                       \
            clear(y, m);                                                            \
            for (int64_t p = 0; p < (cols + 1) / 2; p++) {                          \
                for (int r = 0; r < G; r++) LOAD                                    \
                add_pairs(v, p, a, m, y, odd);                                      \
            }                                                                       \
            for (int t = 0; t < m; t++)                                             \
                for (int r = 0; r < G; r++) y[t][r] += odd[t][r];                   \
        }                                                                           \
    }

FLOAT_GROUP(f32, {
    v[r][0] = mg_float_of(mg_ld32(w + 4 * G * (2 * p) + 4 * r));
    v[r][1] = 2 * p + 1 < cols ? mg_float_of(mg_ld32(w + 4 * G * (2 * p + 1) + 4 * r)) : 0;
})
FLOAT_GROUP(f16, {
    v[r][0] = mg_f16_to_f32(mg_ld16(w + 4 * G * p + 4 * r));
    v[r][1] = mg_f16_to_f32(mg_ld16(w + 4 * G * p + 4 * r + 2));
})
FLOAT_GROUP(bf16, {
    v[r][0] = mg_bf16_to_f32(mg_ld16(w + 4 * G * p + 4 * r));
    v[r][1] = mg_bf16_to_f32(mg_ld16(w + 4 * G * p + 4 * r + 2));
})
static void fp8_pair(const uint8_t *block, int i, int r, float *v) {                /* elements i, i + 1 of a block of row r */
    const float d = mg_float_of(mg_ld32(block + 4 * r));
    const uint8_t *q = block + 4 * G * (1 + i / 4) + 4 * r + i % 4;
    v[0] = mg_e4m3_scaled(q[0], d);
    v[1] = mg_e4m3_scaled(q[1], d);
}
FLOAT_GROUP(fp8_32, fp8_pair(w + p / 16 * 36 * G, (int)(p % 16 * 2), r, v[r]);)
FLOAT_GROUP(fp8_128, fp8_pair(w + p / 64 * 132 * G, (int)(p % 64 * 2), r, v[r]);)

/* --- activations ---------------------------------------------------------------------------------------------------------- */

static void act_f32(const float *x, int64_t cols, void *dst) {
    memcpy(dst, x, (size_t)cols * 4);
    if (cols & 1) ((float *)dst)[cols] = 0;
}

/* d = max |x| / 127, q = x / d rounded to nearest even; |x| * (1 / d) stays below 127.5, so nothing needs clamping.
 * The maximum is taken on bit patterns, where infinity and NaN are the largest: such a block gets a NaN scale, and every result
 * that depends on it is NaN. A scale below the smallest normal float counts as zero, so that 1 / d is finite. */
static void act_a8(const float *x, int64_t cols, void *dst) {
    int8_t *q = mg_a8_q(dst);
    mg_a8 *k = mg_a8_blocks(dst, cols);
    for (int64_t b = 0; b < cols / 32; b++, k++, x += 32, q += 32) {
        uint32_t amax = 0;
        for (int i = 0; i < 32; i++) {
            uint32_t v = mg_bits_of(x[i]) & 0x7fffffff;
            amax = v > amax ? v : amax;
        }
        const int finite = amax < 0x7f800000;
        float scale = finite ? mg_float_of(amax) / 127.0f : mg_float_of(0x7fc00000);
        if (scale < 0x1p-126f) scale = 0;
        const float inv = finite && scale > 0 ? 1.0f / scale : 0;
        for (int h = 0; h < 2; h++) {
            int32_t sum = 0;
            for (int i = 16 * h; i < 16 * h + 16; i++) sum += q[i] = finite ? (int8_t)lrintf(x[i] * inv) : 0;
            k->half[h] = (int16_t)sum;
        }
        k->s = k->half[0] + k->half[1];
        k->d = scale;
        k->ds = scale * k->s;
    }
}

const mg_kernel_table mg_table_generic = {
    .group = {
#define Q(id, name, elems, bytes, act, units, scales) [id] = group_##name,
#include "quants.def"
#undef Q
    },
    .act = {[MG_ACT_F32] = act_f32, [MG_ACT_A8] = act_a8},
};
