/* fp16.h - f16 and bf16 to and from f32, a correctly rounded fma, unaligned loads; static inline, the same bits everywhere.
 *
 * Rounding is to nearest even; f16 overflow gives infinity; NaNs become quiet as hardware does.
 */
#ifndef MOEGG_FP16_H
#define MOEGG_FP16_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "moegg files are little-endian and are used as they lie in memory"
#endif

static inline float mg_float_of(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t mg_bits_of(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline uint16_t mg_ld16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t mg_ld32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }

static inline float mg_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, em = h & 0x7fff;
    if (em >= 0x7c00)                                                   /* infinity, NaN */
        return mg_float_of(sign | 0x7f800000 | (em & 0x3ff) << 13 | (em > 0x7c00) << 22);
    if (em < 0x0400)                                                    /* zero, subnormal: em * 2^-24 is exact */
        return mg_float_of(sign | mg_bits_of((float)em * 0x1p-24f));
    return mg_float_of(sign | ((em << 13) + (112u << 23)));
}

static inline uint16_t mg_f32_to_f16(float f) {
    uint32_t u = mg_bits_of(f), a = u & 0x7fffffff;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) return sign | 0x7c00;                          /* 65520 and above */
    if (a < 0x38800000)                                                 /* below 2^-14: 0.5 has an ulp of 2^-24 */
        return (uint16_t)(sign | (mg_bits_of(mg_float_of(a) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
}

static inline float mg_bf16_to_f32(uint16_t h) { return mg_float_of((uint32_t)h << 16); }

static inline uint16_t mg_f32_to_bf16(float f) {
    uint32_t u = mg_bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* e4m3 (OCP, no infinity) as the f16 of 2^-8 its value; its NaN becomes one. */
static inline uint16_t mg_e4m3_to_f16(uint8_t b) {
    uint16_t h = (uint16_t)((b & 0x80) << 8 | (b & 0x7f) << 7);
    return (b & 0x7f) == 0x7f ? h | 0x4000 : h;
}
/* e4m3 times a scale below 2^120, rounded once: 2^8 goes into the scale, which is exact. */
static inline float mg_e4m3_scaled(uint8_t b, float scale) { return mg_f16_to_f32(mg_e4m3_to_f16(b)) * (256 * scale); }

static inline uint8_t mg_f32_to_e4m3(float f) {                         /* to nearest even, saturating at 448; NaN stays */
    uint32_t u = mg_bits_of(f), a = u & 0x7fffffff;
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);
    if (a > 0x7f800000) return sign | 0x7f;
    if (a >= 0x43e80000) return sign | 0x7e;                            /* 464 and above */
    if (a < 0x3c800000)                                                 /* below 2^-6: 2^14 has an ulp of 2^-9 */
        return (uint8_t)(sign | (mg_bits_of(mg_float_of(a) + 0x1p+14f) - 0x46800000));
    return (uint8_t)(sign | (a - 0x3c000000 + 0x7ffff + (a >> 20 & 1)) >> 20);
}

/* 2^(e - 128), subnormal for e < 2: half the value of e8m0, as ggml pairs it with doubled e2m1. */
static inline float mg_e8m0_half(uint8_t e) { return mg_float_of(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23); }

/* Half the value of unsigned e4m3; 0x7f is zero, as in ggml. */
static inline float mg_ue4m3_half(uint8_t b) {
    if (b == 0x7f) return 0;
    const int e = b >> 3 & 15, m = b & 7;
    return e ? (8 + m) * mg_float_of((uint32_t)(e + 116) << 23) : m * 0x1p-10f;
}

/* fmaf with one rounding. Without an fma instruction: the product of two floats is exact in double, the sum is rounded to odd
 * (Boldo and Melquiond 2008), so that the second rounding cannot go wrong; libm's own emulation is many times slower. */
static inline float mg_fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return fmaf(a, b, c);
#else
    double p = (double)a * b, s = p + c, t = s - p, err = (p - (s - t)) + (c - t);
    uint64_t u;
    memcpy(&u, &s, 8);
    if ((err > 0 || err < 0) && !(u & 1)) {
        u += (err > 0) == (s > 0) ? 1 : -1;
        memcpy(&s, &u, 8);
    }
    return (float)s;
#endif
}

#endif
