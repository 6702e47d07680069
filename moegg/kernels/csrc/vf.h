/* vf.h - 16 floats as one value, for the level that the including file names (VF_AVX512, VF_AVX2, VF_NEON or none: plain C).
 *
 * Every operation is one IEEE operation per lane (fma included), so all levels give the same bits. Functions carry VF_FN.
 * vf_pick: lanes of x where a < b, else of y. vf_least: the first lane of the least value; no NaN.
 */
#ifndef MOEGG_VF_H
#define MOEGG_VF_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(VF_AVX512)
#include <immintrin.h>
#define VF_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")))
#elif defined(VF_AVX2)
#include <immintrin.h>
#define VF_TARGET __attribute__((target("avx2,fma,f16c")))
#elif defined(VF_NEON)
#include <arm_neon.h>
#define VF_TARGET
#else
#define VF_TARGET
#endif
#define VF_FN static inline __attribute__((always_inline)) VF_TARGET

#include "fp16.h"

#if defined(VF_AVX512)
typedef __m512 vf;
VF_FN vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VF_FN void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
VF_FN vf vf_set1(float x) { return _mm512_set1_ps(x); }
VF_FN vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VF_FN vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VF_FN vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VF_FN vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VF_FN vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VF_FN vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VF_FN vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VF_FN vf vf_loadh(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
VF_FN void vf_storeh(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
VF_FN vf vf_pow2(vf n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23)); }
VF_FN vf vf_pick(vf a, vf b, vf x, vf y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
VF_FN int vf_least(vf a) {
    return __builtin_ctz(_mm512_cmp_ps_mask(a, _mm512_set1_ps(_mm512_reduce_min_ps(a)), _CMP_EQ_OQ) | 1u << 16) & 15;
}

#elif defined(VF_AVX2)
typedef struct { __m256 a, b; } vf;
VF_FN vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VF_FN void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
VF_FN vf vf_set1(float x) { __m256 v = _mm256_set1_ps(x); return (vf){v, v}; }
VF_FN vf vf_add(vf x, vf y) { return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
VF_FN vf vf_sub(vf x, vf y) { return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
VF_FN vf vf_mul(vf x, vf y) { return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
VF_FN vf vf_div(vf x, vf y) { return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
VF_FN vf vf_max(vf x, vf y) { return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
VF_FN vf vf_min(vf x, vf y) { return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
VF_FN vf vf_fma(vf x, vf y, vf z) { return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
VF_FN vf vf_loadh(const uint16_t *p) {
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
VF_FN void vf_storeh(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
VF_FN __m256 vf_pow2_half(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
VF_FN vf vf_pow2(vf n) { return (vf){vf_pow2_half(n.a), vf_pow2_half(n.b)}; }
VF_FN vf vf_pick(vf a, vf b, vf x, vf y) {
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)), _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
VF_FN int vf_least(vf a) {
    __m256 m = _mm256_min_ps(a.a, a.b);
    m = _mm256_min_ps(m, _mm256_permute2f128_ps(m, m, 1));
    m = _mm256_min_ps(m, _mm256_permute_ps(m, 0x4e));
    m = _mm256_min_ps(m, _mm256_permute_ps(m, 0xb1));
    const unsigned low = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.a, m, _CMP_EQ_OQ));
    return __builtin_ctz(low | (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.b, m, _CMP_EQ_OQ)) << 8 | 1u << 16) & 15;
}

#elif defined(VF_NEON)
typedef struct { float32x4_t v[4]; } vf;
#define VF_EACH(expr) vf r; for (int i = 0; i < 4; i++) r.v[i] = (expr); return r
VF_FN vf vf_load(const float *p) { VF_EACH(vld1q_f32(p + 4 * i)); }
VF_FN void vf_store(float *p, vf a) { for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]); }
VF_FN vf vf_set1(float x) { VF_EACH(vdupq_n_f32(x)); }
VF_FN vf vf_add(vf a, vf b) { VF_EACH(vaddq_f32(a.v[i], b.v[i])); }
VF_FN vf vf_sub(vf a, vf b) { VF_EACH(vsubq_f32(a.v[i], b.v[i])); }
VF_FN vf vf_mul(vf a, vf b) { VF_EACH(vmulq_f32(a.v[i], b.v[i])); }
VF_FN vf vf_div(vf a, vf b) { VF_EACH(vdivq_f32(a.v[i], b.v[i])); }
VF_FN vf vf_max(vf a, vf b) { VF_EACH(vmaxq_f32(a.v[i], b.v[i])); }
VF_FN vf vf_min(vf a, vf b) { VF_EACH(vminq_f32(a.v[i], b.v[i])); }
VF_FN vf vf_fma(vf a, vf b, vf c) { VF_EACH(vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
VF_FN vf vf_loadh(const uint16_t *p) { VF_EACH(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)))); }
VF_FN void vf_storeh(uint16_t *p, vf a) { for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i]))); }
VF_FN vf vf_pow2(vf n) { VF_EACH(vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23))); }
VF_FN vf vf_pick(vf a, vf b, vf x, vf y) { VF_EACH(vbslq_f32(vcltq_f32(a.v[i], b.v[i]), x.v[i], y.v[i])); }
VF_FN int vf_least(vf a) {
    const float m = vminvq_f32(vminq_f32(vminq_f32(a.v[0], a.v[1]), vminq_f32(a.v[2], a.v[3])));
    float f[16];
    int l = 0;
    vf_store(f, a);
    while (l < 15 && f[l] != m) l++;
    return l;
}

#else
#define VF_PLAIN
typedef struct { float f[16]; } vf;
#define VF_EACH(expr) vf r; for (int i = 0; i < 16; i++) r.f[i] = (expr); return r
VF_FN vf vf_load(const float *p) { vf r; memcpy(r.f, p, 64); return r; }
VF_FN void vf_store(float *p, vf a) { memcpy(p, a.f, 64); }
VF_FN vf vf_set1(float x) { VF_EACH(x); }
VF_FN vf vf_add(vf a, vf b) { VF_EACH(a.f[i] + b.f[i]); }
VF_FN vf vf_sub(vf a, vf b) { VF_EACH(a.f[i] - b.f[i]); }
VF_FN vf vf_mul(vf a, vf b) { VF_EACH(a.f[i] * b.f[i]); }
VF_FN vf vf_div(vf a, vf b) { VF_EACH(a.f[i] / b.f[i]); }
VF_FN vf vf_max(vf a, vf b) { VF_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }      /* as maxps: b when unordered */
VF_FN vf vf_min(vf a, vf b) { VF_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
VF_FN vf vf_fma(vf a, vf b, vf c) { VF_EACH(fmaf(a.f[i], b.f[i], c.f[i])); }
VF_FN vf vf_loadh(const uint16_t *p) { VF_EACH(mg_f16_to_f32(p[i])); }
VF_FN void vf_storeh(uint16_t *p, vf a) { for (int i = 0; i < 16; i++) p[i] = mg_f32_to_f16(a.f[i]); }
VF_FN vf vf_pow2(vf n) {
    vf r;
    for (int i = 0; i < 16; i++) {
        uint32_t u = n.f[i] == n.f[i] ? (uint32_t)((int32_t)n.f[i] + 127) << 23 : 0;
        memcpy(&r.f[i], &u, 4);
    }
    return r;
}
VF_FN vf vf_pick(vf a, vf b, vf x, vf y) { VF_EACH(a.f[i] < b.f[i] ? x.f[i] : y.f[i]); }
VF_FN int vf_least(vf a) {
    int l = 0;
    for (int i = 1; i < 16; i++) l = a.f[i] < a.f[l] ? i : l;
    return l;
}
#endif

/* The 16 lanes summed by a fixed tree. */
VF_FN float vf_sum(vf a) {
    float f[16];
    vf_store(f, a);
    for (int n = 8; n; n >>= 1)
        for (int i = 0; i < n; i++) f[i] += f[i + n];
    return f[0];
}

/* The largest lane. */
VF_FN float vf_top(vf a) {
#if defined(VF_AVX512)
    return _mm512_reduce_max_ps(a);
#elif defined(VF_AVX2)
    const __m256 x = _mm256_max_ps(a.a, a.b);
    const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)), z = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
#elif defined(VF_NEON)
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
#else
    float top = a.f[0];
    for (int i = 1; i < 16; i++) top = a.f[i] > top ? a.f[i] : top;
    return top;
#endif
}

/* Lane i is vf_sum of row i of p [16][16]: the same tree, for 16 rows at once. */
#if defined(VF_AVX512)
VF_FN vf vf_sums(const float *p) {
    vf z[4];
    for (int k = 0; k < 4; k++) {                        /* rows k, k + 4, k + 8, k + 12: 16 lanes to 4 each */
        const vf a = vf_load(p + k * 16), b = vf_load(p + (k + 4) * 16), c = vf_load(p + (k + 8) * 16), d = vf_load(p + (k + 12) * 16);
        const vf x = vf_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        const vf y = vf_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
        z[k] = vf_add(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    }
    const vf l = vf_add(_mm512_shuffle_ps(z[0], z[1], 0x44), _mm512_shuffle_ps(z[0], z[1], 0xee));
    const vf h = vf_add(_mm512_shuffle_ps(z[2], z[3], 0x44), _mm512_shuffle_ps(z[2], z[3], 0xee));
    return vf_add(_mm512_shuffle_ps(l, h, 0x88), _mm512_shuffle_ps(l, h, 0xdd));
}
#elif defined(VF_AVX2)
VF_FN __m256 vf_sums_half(const float *p) {
    __m256 z[4];
    for (int k = 0; k < 4; k++) {                        /* rows k and k + 4 */
        const vf a = vf_load(p + k * 16), b = vf_load(p + (k + 4) * 16);
        const __m256 x = _mm256_add_ps(a.a, a.b), y = _mm256_add_ps(b.a, b.b);
        z[k] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    }
    const __m256 l = _mm256_add_ps(_mm256_shuffle_ps(z[0], z[1], 0x44), _mm256_shuffle_ps(z[0], z[1], 0xee));
    const __m256 h = _mm256_add_ps(_mm256_shuffle_ps(z[2], z[3], 0x44), _mm256_shuffle_ps(z[2], z[3], 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(l, h, 0x88), _mm256_shuffle_ps(l, h, 0xdd));
}
VF_FN vf vf_sums(const float *p) { return (vf){vf_sums_half(p), vf_sums_half(p + 128)}; }
#elif defined(VF_NEON)
VF_FN vf vf_sums(const float *p) {
    vf r;
    for (int i = 0; i < 4; i++) {                        /* rows 4 i to 4 i + 3 */
        float32x4_t z[4];
        for (int k = 0; k < 4; k++) {
            const vf a = vf_load(p + (4 * i + k) * 16);
            z[k] = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
        }
        const float32x4_t l = vaddq_f32(vcombine_f32(vget_low_f32(z[0]), vget_low_f32(z[1])), vcombine_f32(vget_high_f32(z[0]), vget_high_f32(z[1])));
        const float32x4_t h = vaddq_f32(vcombine_f32(vget_low_f32(z[2]), vget_low_f32(z[3])), vcombine_f32(vget_high_f32(z[2]), vget_high_f32(z[3])));
        r.v[i] = vaddq_f32(vuzp1q_f32(l, h), vuzp2q_f32(l, h));
    }
    return r;
}
#else
VF_FN vf vf_sums(const float *p) { VF_EACH(vf_sum(vf_load(p + i * 16))); }
#endif

/* exp(x) = (1 + p) 2^n with |ln(1 + p)| <= ln(2) / 2, x clamped to -87..88: p, and *power = 2^n; NaN stays NaN. Range reduction and
 * polynomial after Cephes expf. */
VF_FN vf vf_exp_parts(vf x, vf *power) {
    const vf magic = vf_set1(12582912.0f);             /* 1.5 * 2^23: adding and subtracting it rounds to nearest */
    x = vf_min(vf_set1(88.0f), vf_max(vf_set1(-87.0f), x));
    vf n = vf_sub(vf_add(vf_mul(x, vf_set1(1.44269504f)), magic), magic);
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    *power = vf_pow2(n);
    return vf_fma(p, vf_mul(r, r), r);
}

/* About 1 ulp. */
VF_FN vf vf_exp(vf x) {
    vf power;
    const vf p = vf_exp_parts(x, &power);
    return vf_mul(vf_add(p, vf_set1(1.0f)), power);
}

/* exp(x) - 1, about 1 ulp where |x| is small, too. */
VF_FN vf vf_expm1(vf x) {
    vf power;
    const vf p = vf_exp_parts(x, &power);
    return vf_fma(p, power, vf_sub(power, vf_set1(1.0f)));
}

/* tanh(x) = 1 - 2 / (exp(2x) + 1): absolute error about 1e-7, enough for gelu and soft caps. */
VF_FN vf vf_tanh(vf x) {
    vf e = vf_exp(vf_add(x, x));
    return vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f))));
}

#endif
