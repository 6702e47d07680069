/* quantize_grid.c - floats to blocks whose codes stand for a grid: iq4, fp4, ternary, MLX's affine rows and e4m3.
 *
 * tq1_0, tq2_0 and mxfp4 round as ggml's gguf package does (gguf-py quants.py); iq4 rows search as search.h says. Most of these
 * rows come from published files as they are; encoded here is what a conversion has to change. Values of no meaning (NaN,
 * infinity) give defined but useless codes: callers refuse them.
 */
#include "kernels.h"
#include "quantize_int.h"
#include "search.h"

/* --- iq4: 16 uneven values ---------------------------------------------------------------------------------------------- */

/* The scale: the extreme element becomes the lowest value; with search, the better of that and of what is found. */
static float iq4_scale(const float *x, const float *worth, int search) {
    const float plain = extreme(x, 32) / mg_iq4_grid[0];
    float w[32], err[2] = {0};
    uint8_t q[32];
    if (!search) return plain;
    mg_search.weigh(x, worth, 32, w);
    const float d[2] = {to_f16(plain), to_f16(mg_search.scale_iq4(x, w, 32))};
    for (int k = 0; k < 2; k++) {
        mg_search.codes_iq4(x, 32, d[k], q);
        for (int i = 0; i < 32; i++) {
            const float e = x[i] - d[k] * mg_iq4_grid[q[i]];
            err[k] += w[i] * e * e;
        }
    }
    return d[1] && err[1] < err[0] ? d[1] : plain;
}

static void pack_16(const uint8_t *q, uint8_t *qs) {
    for (int i = 0; i < 16; i++) qs[i] = (uint8_t)(q[i] | q[i + 16] << 4);
}

QUANT(iq4_nl) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32, worth += worth ? 32 : 0) {
        b->d = mg_f32_to_f16(iq4_scale(x, worth, search));
        mg_search.codes_iq4(x, 32, mg_f16_to_f32(b->d), q);
        pack_16(q, b->qs);
    }
}

QUANT(iq4_xs) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256, worth += worth ? 256 : 0) {
        int sc[8];
        memset(b, 0, sizeof *b);
        b->d = mg_search.iq4_k(x, worth, sc, q);
        for (int j = 0; j < 8; j++) {
            b->scales_l[j / 2] |= (uint8_t)(((sc[j] + 32) & 15) << j % 2 * 4);
            b->scales_h |= (uint16_t)((sc[j] + 32) >> 4 << 2 * j);
            pack_16(q + 32 * j, b->qs + 16 * j);
        }
    }
}

/* --- fp4: e2m1 ---------------------------------------------------------------------------------------------------------- */

static int fp4_code(float x, float d) {
    int best = 0;
    for (int q = 1; q < 16; q++)
        if (fabsf(d * mg_fp4_grid[q] - x) < fabsf(d * mg_fp4_grid[best] - x)) best = q;
    return best;
}

/* The largest power of two with which the extreme element stays below the largest value. */
QUANT(mxfp4) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32) {
        const int e = (int)(mg_bits_of(extreme(x, 32)) >> 23 & 255) - 2;
        b->e = (uint8_t)(e > 0 ? e : 0);
        for (int i = 0; i < 32; i++) q[i] = (uint8_t)fp4_code(x[i], mg_e8m0_half(b->e));
        pack_16(q, b->qs);
    }
}

/* Per 16 elements the unsigned e4m3 that puts the extreme one nearest to 6. */
QUANT(nvfp4) {
    for (; n > 0; n--, b++, x += 64) {
        memset(b, 0, sizeof *b);
        for (int h = 0; h < 4; h++) {
            const float top = fabsf(extreme(x + 16 * h, 16));
            b->d[h] = mg_f32_to_e4m3(top < 448 * 6 ? top / 6 : 448);
            for (int i = 0; i < 16; i++)
                b->qs[8 * h + i % 8] |= (uint8_t)(fp4_code(x[16 * h + i], mg_ue4m3_half(b->d[h])) << i / 8 * 4);
        }
    }
}

/* --- ternary ------------------------------------------------------------------------------------------------------------ */

/* 0, 1, 2: halves away from zero. */
static int trit_of(float v) { return 1 + (v >= 0.5f) - (v <= -0.5f); }

QUANT(tq1_0) {
    static const uint8_t power[5] = {81, 27, 9, 3, 1};
    for (; n > 0; n--, b++, x += 256) {
        const float d = fabsf(extreme(x, 256)), inv = inverse(d);
        uint16_t sum[52] = {0};
        for (int e = 0; e < 256; e++) {
            const int f = e - 160, g = e - 240, at = f < 0 ? e % 32 : g < 0 ? 32 + f % 16 : 48 + g % 4;
            sum[at] += (uint16_t)(trit_of(x[e] * inv) * power[f < 0 ? e / 32 : g < 0 ? f / 16 : g / 4]);
        }
        for (int i = 0; i < 52; i++) (i < 48 ? b->qs + i : b->qh + i - 48)[0] = (uint8_t)((sum[i] * 256 + 242) / 243);
        b->d = mg_f32_to_f16(d);
    }
}

static void pack_trits(const float *x, int n, float inv, uint8_t *qs) {
    memset(qs, 0, n / 4);
    for (int e = 0; e < n; e++) qs[e / 128 * 32 + e % 32] |= (uint8_t)(trit_of(x[e] * inv) << e / 32 % 4 * 2);
}

QUANT(tq2_0) {
    for (; n > 0; n--, b++, x += 256) {
        const float d = fabsf(extreme(x, 256));
        pack_trits(x, 256, inverse(d), b->qs);
        b->d = mg_f32_to_f16(d);
    }
}

QUANT(ternary) {
    for (; n > 0; n--, b++, x += 128) {
        const float d = fabsf(extreme(x, 128));
        pack_trits(x, 128, inverse(d), b->qs);
        b->d = mg_f32_to_bf16(d);
    }
}

/* --- MLX affine: step and minimum of 64 elements, rounded first ------------------------------------------------------------- */

static void pack_affine(const float *x, float d, float m, uint8_t *qs) {
    const float inv = inverse(d);
    memset(qs, 0, 32);
    for (int e = 0; e < 64; e++) qs[e % 32] |= (uint8_t)((int)nearest(clamp((x[e] - m) * inv, 0, 15)) << e / 32 * 4);
}

QUANT(mlx4) {
    for (float lo, hi; n > 0; n--, b++, x += 64) {
        range(x, 64, &lo, &hi);
        b->d = mg_f32_to_bf16((hi - lo) / 15), b->m = mg_f32_to_bf16(lo);
        pack_affine(x, mg_bf16_to_f32(b->d), mg_bf16_to_f32(b->m), b->qs);
    }
}

QUANT(mlx4_f16) {
    for (float lo, hi; n > 0; n--, b++, x += 64) {
        range(x, 64, &lo, &hi);
        b->d = mg_f32_to_f16((hi - lo) / 15), b->m = mg_f32_to_f16(lo);
        pack_affine(x, mg_f16_to_f32(b->d), mg_f16_to_f32(b->m), b->qs);
    }
}

/* --- e4m3 under an f32 scale ---------------------------------------------------------------------------------------------- */

static void pack_fp8(const float *x, int n, uint8_t *d_out, uint8_t *qs) {
    const float d = fabsf(extreme(x, n)) / 448, inv = inverse(d);
    memcpy(d_out, &d, 4);
    for (int i = 0; i < n; i++) qs[i] = mg_f32_to_e4m3(x[i] * inv);
}
QUANT(fp8_32) {
    for (; n > 0; n--, b++, x += 32) pack_fp8(x, 32, b->d, b->qs);
}
QUANT(fp8_128) {
    for (; n > 0; n--, b++, x += 128) pack_fp8(x, 128, b->d, b->qs);
}
