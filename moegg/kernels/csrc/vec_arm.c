/* vec_arm.c - primitives for AArch64: four vectors of 4 rows per group; the dot product is smlal (neon) or sdot (dotprod).
 *
 * i8mm has kernels of another shape, for many activation rows: codes are unpacked once for all of them, then smmla (below).
 */
#if defined(__aarch64__)
#include <arm_neon.h>

#include "fp16.h"
#include "kernels.h"
#include "quants.h"

#define OP static inline __attribute__((always_inline))
#define LANES 4
#define TILE_MAX 4
typedef int32x4_t iv;
typedef float32x4_t fv;

OP uint8x16_t u8(iv v) { return vreinterpretq_u8_s32(v); }
OP int8x16_t s8(iv v) { return vreinterpretq_s8_s32(v); }
OP iv from_u8(uint8x16_t v) { return vreinterpretq_s32_u8(v); }

OP iv ld(const void *p) { return from_u8(vld1q_u8(p)); }
OP iv bci(const void *p) { return vdupq_n_s32((int32_t)mg_ld32(p)); }
OP fv bcf(const float *p) { return vld1q_dup_f32(p); }
OP fv halves(const void *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
OP iv words(const void *p) { return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(p)))); }
OP iv bytes(const void *p) {
    const uint16x8_t v = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(mg_ld32(p))));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(v)));
}
OP iv lookup(const int8_t *grid, iv v) { return vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(grid), u8(v))); }
OP void st(float *p, fv v) { vst1q_f32(p, v); }
OP iv izero(void) { return vdupq_n_s32(0); }
OP fv zero(void) { return vdupq_n_f32(0); }
OP iv lo4(iv v) { return from_u8(vandq_u8(u8(v), vdupq_n_u8(15))); }
OP iv hi4(iv v) { return from_u8(vshrq_n_u8(u8(v), 4)); }
OP iv merge(iv c, iv v, const int shift, const int mask) {
    return from_u8(vorrq_u8(u8(c), vandq_u8(vshlq_u8(u8(v), vdupq_n_s8((int8_t)shift)), vdupq_n_u8((uint8_t)mask))));
}
OP iv fifth(iv c, iv h, const int i) {
    static const uint8_t first[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    uint8x16_t spread = vqtbl1q_u8(u8(h), vaddq_u8(vld1q_u8(first), vdupq_n_u8((uint8_t)(i / 2))));
    uint8x16_t set = vtstq_u8(spread, vreinterpretq_u8_u32(vdupq_n_u32(i % 2 ? 0x80402010 : 0x08040201)));
    return from_u8(vorrq_u8(u8(c), vandq_u8(set, vdupq_n_u8(16))));
}
OP iv ci(const int n) { return vdupq_n_s32(n); }
OP iv field(iv v, const int n, const int mask) { return vandq_s32(vshlq_s32(v, ci(-n)), ci(mask)); }
OP iv sbyte_at(iv v, const int k) { return vshrq_n_s32(vshlq_s32(v, vdupq_n_s32(24 - 8 * k)), 24); }
OP iv addi(iv a, iv b) { return vaddq_s32(a, b); }
OP iv subi(iv a, iv b) { return vsubq_s32(a, b); }
OP iv maxi(iv a, iv b) { return vmaxq_s32(a, b); }
OP iv ori(iv a, iv b) { return vorrq_s32(a, b); }
OP iv muli(iv a, iv b) { return vmulq_s32(a, b); }
OP iv shl(iv a, const int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
OP fv cvt(iv a) { return vcvtq_f32_s32(a); }
OP fv asf(iv a) { return vreinterpretq_f32_s32(a); }
OP fv add(fv a, fv b) { return vaddq_f32(a, b); }
OP fv mul(fv a, fv b) { return vmulq_f32(a, b); }
OP fv madd(fv a, fv b, fv c) { return vfmaq_f32(c, a, b); }
OP fv nmadd(fv a, fv b, fv c) { return vfmsq_f32(c, a, b); }
OP fv lo16f(iv v) { return vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(v))); }
OP fv hi16f(iv v) { return vcvt_f32_f16(vreinterpret_f16_s16(vshrn_n_s32(v, 16))); }
OP fv lo16b(iv v) { return asf(vshlq_n_s32(v, 16)); }
OP fv hi16b(iv v) { return asf(vandq_s32(v, vdupq_n_s32((int32_t)0xffff0000))); }

OP iv half_sums(iv m0, iv m1, const mg_a8 *x) { return vmlaq_n_s32(vmulq_n_s32(m0, x->half[0]), m1, x->half[1]); }
/* Both halves less zero * the sum of x, times their scales. */
OP iv scaled_halves(iv lo, iv hi, iv sc0, iv sc1, const int zero, const mg_a8 *x) {
    if (zero) lo = vsubq_s32(lo, vdupq_n_s32(zero * x->half[0])), hi = vsubq_s32(hi, vdupq_n_s32(zero * x->half[1]));
    return vmlaq_s32(vmulq_s32(sc0, lo), sc1, hi);
}

/* --- neon: products of one byte position stay in 16 bits over a sum's units: 8 * 31 * 127, 4 * 63 * 127, 2 * 128 * 127 --- */

#define TGT
#define FN(name) name##_neon

/* Units first..last-1; rows 0 and 1 are the low 8 bytes of a vector. */
OP iv products(const iv *c, const int8_t *x, const int first, const int last) {
    int16x8_t lo = vdupq_n_s16(0), hi = lo;
    _Pragma("GCC unroll 8") for (int i = first; i < last; i++) {
        int8x16_t v = s8(bci(x + 4 * i));
        lo = vmlal_s8(lo, vget_low_s8(s8(c[i])), vget_low_s8(v));
        hi = vmlal_high_s8(hi, s8(c[i]), v);
    }
    return vpaddq_s32(vpaddlq_s16(lo), vpaddlq_s16(hi));
}
OP void dot_u5_neon(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) s[t] = products(c, mg_a8_q(a[t]) + 32 * b, 0, 8);
}
OP void dot_u4_neon(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    dot_u5_neon(c, a, cols, b, s, T);
}
OP void dot_halves_neon(const iv *c, iv sc0, iv sc1, const int zero, const void *const *a, int64_t cols, int64_t b, iv *s,
                        const int T) {
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) {
        const int8_t *x = mg_a8_q(a[t]) + 32 * b;
        s[t] = scaled_halves(products(c, x, 0, 4), products(c, x, 4, 8), sc0, sc1, zero, mg_a8_blocks(a[t], cols) + b);
    }
}
OP void dot_s8_neon(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) {
        const int8_t *x = mg_a8_q(a[t]) + 32 * b;
        s[t] = addi(addi(products(c, x, 0, 2), products(c, x, 2, 4)), addi(products(c, x, 4, 6), products(c, x, 6, 8)));
    }
}

#include "vec_tile.h"

/* One block of 32: vec_generic.c's act_a8. */
static void act_a8_neon(const float *x, int64_t cols, void *dst) {
    int8_t *q = mg_a8_q(dst);
    mg_a8 *k = mg_a8_blocks(dst, cols);
    for (int64_t b = 0; b < cols / 32; b++, k++, x += 32, q += 32) {
        float32x4_t v[8];
        uint32x4_t m = vdupq_n_u32(0);
        int16_t half[2] = {0, 0};
        _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
            v[j] = vld1q_f32(x + 4 * j);
            m = vmaxq_u32(m, vreinterpretq_u32_f32(vabsq_f32(v[j])));
        }
        const uint32_t amax = vmaxvq_u32(m);
        const int finite = amax < 0x7f800000;
        float scale = finite ? mg_float_of(amax) / 127.0f : mg_float_of(0x7fc00000);
        if (scale < 0x1p-126f) scale = 0;
        const float inv = finite && scale > 0 ? 1.0f / scale : 0;
        _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++) {
            int16x8_t i[2];
            for (int j = 0; j < 2; j++) {
                const float32x4_t *u = v + 4 * h + 2 * j;
                int32x4_t lo = vcvtnq_s32_f32(vmulq_n_f32(u[0], inv)), hi = vcvtnq_s32_f32(vmulq_n_f32(u[1], inv));
                i[j] = vandq_s16(vcombine_s16(vmovn_s32(lo), vmovn_s32(hi)), vdupq_n_s16((int16_t)-finite));
            }
            half[h] = vaddvq_s16(vaddq_s16(i[0], i[1]));
            vst1q_s8(q + 16 * h, vcombine_s8(vmovn_s16(i[0]), vmovn_s16(i[1])));
        }
        const int s = half[0] + half[1];
        *k = (mg_a8){scale, scale * s, s, {half[0], half[1]}};
    }
}

const mg_kernel_table mg_table_neon = {
    .group = {
#define Q(id, name, elems, bytes, act, units, scales) [id] = name##_neon,
#define PLAIN(...)
#include "quants.def"
#undef Q
    },
    .act = {[MG_ACT_A8] = act_a8_neon},
};

/* --- dotprod: all codes fit signed bytes, sdot takes four of a row with four activations picked by lane --------------------- */

#undef TGT
#undef FN
#if !defined(__clang__) || defined(__ARM_FEATURE_DOTPROD) || __clang_major__ >= 16
#if defined(__ARM_FEATURE_DOTPROD)
#define TGT
#elif defined(__clang__)
#define TGT __attribute__((target("dotprod")))
#else
#define TGT __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define FN(name) name##_dotprod

OP TGT iv sdot4(iv s, const iv *c, int8x16_t x) {
    s = vdotq_laneq_s32(s, s8(c[0]), x, 0);
    s = vdotq_laneq_s32(s, s8(c[1]), x, 1);
    s = vdotq_laneq_s32(s, s8(c[2]), x, 2);
    return vdotq_laneq_s32(s, s8(c[3]), x, 3);
}
OP TGT void dot_s8_dotprod(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) {
        const int8_t *x = mg_a8_q(a[t]) + 32 * b;
        s[t] = sdot4(sdot4(izero(), c, vld1q_s8(x)), c + 4, vld1q_s8(x + 16));
    }
}
OP TGT void dot_u4_dotprod(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    dot_s8_dotprod(c, a, cols, b, s, T);
}
OP TGT void dot_u5_dotprod(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    dot_s8_dotprod(c, a, cols, b, s, T);
}
OP TGT void dot_halves_dotprod(const iv *c, iv sc0, iv sc1, const int zero, const void *const *a, int64_t cols, int64_t b, iv *s,
                               const int T) {
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) {
        const int8_t *x = mg_a8_q(a[t]) + 32 * b;
        iv lo = sdot4(izero(), c, vld1q_s8(x)), hi = sdot4(izero(), c + 4, vld1q_s8(x + 16));
        s[t] = scaled_halves(lo, hi, sc0, sc1, zero, mg_a8_blocks(a[t], cols) + b);
    }
}

#include "vec_tile.h"

const mg_kernel_table mg_table_dotprod = {
    .group = {
        [2] = q4_0_dotprod, [3] = q4_1_dotprod, [6] = q5_0_dotprod, [7] = q5_1_dotprod, [8] = q8_0_dotprod,
        [10] = q2_k_dotprod, [11] = q3_k_dotprod, [12] = q4_k_dotprod, [13] = q5_k_dotprod, [14] = q6_k_dotprod,
        [20] = iq4_nl_dotprod, [23] = iq4_xs_dotprod, [35] = tq2_0_dotprod, [39] = mxfp4_dotprod, [64] = ternary_dotprod,
        [65] = mlx4_dotprod, [66] = mlx4_f16_dotprod,
    },
};
#else
const mg_kernel_table mg_table_dotprod = {.group = {0}};
#endif

/* --- i8mm: smmla multiplies 2 activation rows by 2 weight rows, 8 bytes of each ----------------------------------------------
 *
 * A panel holds up to 256 columns of a group as signed bytes in the order smmla wants. All activation rows, in fours, go against
 * it; y is the accumulator from panel to panel. A vector of a tile is x . r, x . r + 1, x' . r, x' . r + 1 for two activation
 * rows x, x' and two weight rows. With few activation rows a panel does not pay, and sdot serves.
 */
#undef TGT
#undef FN
#if defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_DOTPROD)
#define TGT
#define HAS_I8MM
#elif defined(__clang__) && __clang_major__ >= 16
#define TGT __attribute__((target("dotprod,i8mm")))
#define HAS_I8MM
#elif !defined(__clang__) && !defined(__ARM_FEATURE_DOTPROD)       /* else gcc was told of a CPU that has none */
#define TGT __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#define HAS_I8MM
#endif
#ifdef HAS_I8MM
enum { PAIRS = MG_GROUP / 2, BLOCKS = 8 };                /* pairs of weight rows, blocks of a panel */
enum { SCALED, WITH_MIN, HALVES };                        /* d * sum; and + m * s; d * (sc[0] * sum of 16 + sc[1] * sum of 16) */

typedef struct {
    int8_t code[BLOCKS][4][PAIRS][16];                    /* per 8 columns: those of one row, of the other */
    float d[BLOCKS][PAIRS][4], m[BLOCKS][PAIRS][4];       /* both rows', twice */
    int32_t sc[BLOCKS][2][PAIRS][4];
} panel;

OP void put_twice(void *pairs, iv v) {
    int64x2_t u = vreinterpretq_s64_s32(v);
    vst1q_s64((int64_t *)pairs, vdupq_laneq_s64(u, 0));
    vst1q_s64((int64_t *)pairs + 2, vdupq_laneq_s64(u, 1));
}
OP iv bits(fv v) { return vreinterpretq_s32_f32(v); }

/* The codes of rows 4p..4p+3, less `zero`. */
OP void put_codes(panel *k, int b, int p, const iv *c, const int zero) {
    const int8x16_t z = vdupq_n_s8((int8_t)zero);
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
        vst1q_s8(k->code[b][i][2 * p], vsubq_s8(s8(vzip1q_s32(c[2 * i], c[2 * i + 1])), z));
        vst1q_s8(k->code[b][i][2 * p + 1], vsubq_s8(s8(vzip2q_s32(c[2 * i], c[2 * i + 1])), z));
    }
}

/* q4_0 to q8_0: d, m if any, fifth bits if any, codes. */
OP const uint8_t *fill_32(panel *k, const uint8_t *w, int blocks, const int width, const int kind) {
    const int codes = kind == WITH_MIN ? 64 : 32;
    for (int b = 0; b < blocks; b++, w += codes + 64 * width) {
        prefetch_neon(w, codes + 64 * width);
        for (int p = 0; p < 4; p++) {
            const uint8_t *u = w + codes + 16 * p;
            iv c[8];
            if (width == 8) _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) c[i] = ld(u + 64 * i);
            else nibbles_neon(u + 64 * (width - 4), c);
            if (width == 5) _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) c[i] = fifth(c[i], ld(u), i);
            put_codes(k, b, p, c, width == 8 || kind == WITH_MIN ? 0 : 1 << (width - 1));
            put_twice(k->d[b][2 * p], bits(halves(w + 8 * p)));
            if (kind == WITH_MIN) put_twice(k->m[b][2 * p], bits(halves(w + 32 + 8 * p)));
        }
    }
    return w;
}

/* q4_k, q5_k: d, dmin, scales, fifth bits if any, nibbles. */
OP const uint8_t *fill_k(panel *k, const uint8_t *w, const int width) {
    const int bytes = 256 + 512 * width;
    prefetch_neon(w, bytes);
    for (int p = 0; p < 4; p++) {
        fv d = halves(w + 8 * p), dmin = vnegq_f32(halves(w + 32 + 8 * p));
        iv sc[2], mn[2], c[8];
        scales_neon(w + 64 + 16 * p, sc, mn);
        _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
            half_nibbles_neon(w + 256 + 512 * (width - 4) + 512 * (j / 2) + 16 * p, j % 2, c);
            for (int i = 0; width == 5 && i < 8; i++) c[i] = merge(c[i], ld(w + 256 + 64 * i + 16 * p), 4 - j, 0x10);
            put_codes(k, j, p, c, 0);
            put_twice(k->d[j][2 * p], bits(mul(d, cvt(field(sc[j / 4], j % 4 * 8, 255)))));
            put_twice(k->m[j][2 * p], bits(mul(dmin, cvt(field(mn[j / 4], j % 4 * 8, 255)))));
        }
    }
    return w + bytes;
}

OP const uint8_t *fill_q6_k(panel *k, const uint8_t *w) {
    prefetch_neon(w, 16 * 210);
    for (int p = 0; p < 4; p++)
        _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
            iv c[8], sc = ld(w + 16 * 192 + 64 * (j / 2) + 16 * p);
            half_nibbles_neon(w + 1024 * (j / 4) + 512 * (j % 2) + 16 * p, j % 4 / 2, c);
            _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)
                c[i] = merge(c[i], ld(w + 16 * 128 + 512 * (j / 4) + 64 * i + 16 * p), 4 - j % 4 * 2, 0x30);
            put_codes(k, j, p, c, 32);
            put_twice(k->d[j][2 * p], bits(halves(w + 16 * 208 + 8 * p)));
            for (int h = 0; h < 2; h++) put_twice(k->sc[j][h][2 * p], sbyte_at(sc, j % 2 * 2 + h));
        }
    return w + 16 * 210;
}

/* Half a panel, four pairs of weight rows from r0 on, by T / 2 pairs of activation rows. q, x: their codes and blocks. */
OP TGT void tile_i8mm(const panel *k, int blocks, int r0, const int8_t **q, const mg_a8 **x, float **y, const int T,
                      const int kind) {
#define EACH _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) _Pragma("GCC unroll 2") for (int t = 0; t < T / 2; t++)
    fv acc[4][2];
    EACH acc[r][t] = vcombine_f32(vld1_f32(y[2 * t] + 2 * (r0 + r)), vld1_f32(y[2 * t + 1] + 2 * (r0 + r)));
    for (int b = 0; b < blocks; b++) {
        iv s[4][2], sum[4][2];
        fv dx[2], ds[2];
        EACH s[r][t] = izero();
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
            int8x16_t v[2];
            _Pragma("GCC unroll 2") for (int t = 0; t < T / 2; t++)
                v[t] = vcombine_s8(vld1_s8(q[2 * t] + 32 * b + 8 * i), vld1_s8(q[2 * t + 1] + 32 * b + 8 * i));
            EACH s[r][t] = vmmlaq_s32(s[r][t], v[t], vld1q_s8(k->code[b][i][r0 + r]));
            if (kind == HALVES && i == 1)
                EACH {
                    sum[r][t] = muli(s[r][t], ld(k->sc[b][0][r0 + r]));
                    s[r][t] = izero();
                }
        }
        if (kind == HALVES) EACH s[r][t] = vmlaq_s32(sum[r][t], s[r][t], ld(k->sc[b][1][r0 + r]));
        _Pragma("GCC unroll 2") for (int t = 0; t < T / 2; t++) {
            fv z = vzip1q_f32(asf(ld(x[2 * t] + b)), asf(ld(x[2 * t + 1] + b)));                  /* d, d', ds, ds' */
            dx[t] = vzip1q_f32(z, z);
            ds[t] = vzip2q_f32(z, z);
        }
        EACH {
            acc[r][t] = madd(mul(vld1q_f32(k->d[b][r0 + r]), dx[t]), cvt(s[r][t]), acc[r][t]);
            if (kind == WITH_MIN) acc[r][t] = madd(vld1q_f32(k->m[b][r0 + r]), ds[t], acc[r][t]);
        }
    }
    EACH {
        vst1_f32(y[2 * t] + 2 * (r0 + r), vget_low_f32(acc[r][t]));
        vst1_f32(y[2 * t + 1] + 2 * (r0 + r), vget_high_f32(acc[r][t]));
    }
#undef EACH
}

/* The last activation row stands in for those that are missing in a pair: the same sums twice. */
OP TGT void rows_i8mm(const panel *k, int64_t b, int blocks, int64_t cols, const void *const *a, int n, float *const *y,
                      const int kind) {
    for (int t = 0; t < n; t += 4) {
        const int8_t *q[4];
        const mg_a8 *x[4];
        float *v[4];
        for (int i = 0; i < 4; i++) {
            const int u = t + i < n ? t + i : n - 1;
            q[i] = mg_a8_q(a[u]) + 32 * b;
            x[i] = mg_a8_blocks(a[u], cols) + b;
            v[i] = y[u];
        }
        for (int r = 0; r < PAIRS; r += 4) {
            if (n - t > 2) tile_i8mm(k, blocks, r, q, x, v, 4, kind);
            else tile_i8mm(k, blocks, r, q, x, v, 2, kind);
        }
    }
}

/* few: activation rows below which sdot takes fewer cycles by the models of Neoverse N2, V1 and V2 in llvm-mca 19. */
#define GROUP(name, few, KIND, FILL)                                                                          \
    static TGT void name##_i8mm(const uint8_t *w, int64_t cols, const void *const *a, int n, float *const *y) {\
        if (n < few) {                                                                                        \
            name##_dotprod(w, cols, a, n, y);                                                                 \
            return;                                                                                           \
        }                                                                                                     \
        panel k;                                                                                              \
        for (int t = 0; t < n; t++) memset(y[t], 0, MG_GROUP * sizeof(float));                                \
        for (int64_t b = 0; b < cols / 32; b += BLOCKS) {                                                     \
            const int blocks = cols / 32 - b < BLOCKS ? (int)(cols / 32 - b) : BLOCKS;                        \
            w = FILL;                                                                                         \
            rows_i8mm(&k, b, blocks, cols, a, n, y, KIND);                                                    \
        }                                                                                                     \
    }

GROUP(q4_0, 6, SCALED, fill_32(&k, w, blocks, 4, SCALED))
GROUP(q4_1, 6, WITH_MIN, fill_32(&k, w, blocks, 4, WITH_MIN))
GROUP(q5_0, 6, SCALED, fill_32(&k, w, blocks, 5, SCALED))
GROUP(q5_1, 6, WITH_MIN, fill_32(&k, w, blocks, 5, WITH_MIN))
GROUP(q8_0, 6, SCALED, fill_32(&k, w, blocks, 8, SCALED))
GROUP(q4_k, 3, WITH_MIN, fill_k(&k, w, 4))
GROUP(q5_k, 3, WITH_MIN, fill_k(&k, w, 5))
GROUP(q6_k, 3, HALVES, fill_q6_k(&k, w))

const mg_kernel_table mg_table_i8mm = {
    .group = {
        [2] = q4_0_i8mm, [3] = q4_1_i8mm, [6] = q5_0_i8mm, [7] = q5_1_i8mm, [8] = q8_0_i8mm,
        [12] = q4_k_i8mm, [13] = q5_k_i8mm, [14] = q6_k_i8mm,
    },
};
#else
const mg_kernel_table mg_table_i8mm = {.group = {0}};
#endif
#endif
