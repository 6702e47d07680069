/* vec_x86_avx512.c - primitives for AVX-512 with VNNI: one vector is the 16 rows of a group, vpdpbusd is the dot product. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "fp16.h"
#include "kernels.h"
#include "quants.h"

#define TGT __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")))
#define OP static inline __attribute__((always_inline)) TGT
#define FN(name) name##_avx512
#define LANES 16
#define TILE_MAX 8
typedef __m512i iv;
typedef __m512 fv;

OP iv ld(const void *p) { return _mm512_loadu_si512(p); }
OP iv bci(const void *p) { return _mm512_set1_epi32((int)mg_ld32(p)); }
OP fv bcf(const float *p) { return _mm512_set1_ps(*p); }
OP fv halves(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
OP iv words(const void *p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256(p)); }
OP iv bytes(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
OP iv lookup(const int8_t *grid, iv v) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)grid)), v);
}
OP void st(float *p, fv v) { _mm512_storeu_ps(p, v); }
OP iv izero(void) { return _mm512_setzero_si512(); }
OP fv zero(void) { return _mm512_setzero_ps(); }
OP iv lo4(iv v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
OP iv hi4(iv v) { return lo4(_mm512_srli_epi32(v, 4)); }
OP iv merge(iv c, iv v, const int shift, const int mask) {
    v = shift > 0 ? _mm512_slli_epi32(v, shift > 0 ? shift : 0) : shift < 0 ? _mm512_srli_epi32(v, shift < 0 ? -shift : 0) : v;
    return _mm512_ternarylogic_epi32(c, v, _mm512_set1_epi8((char)mask), 0xf8);          /* c | (v & mask) */
}
OP iv fifth(iv c, iv h, const int i) {
    iv spread = _mm512_shuffle_epi8(h, _mm512_add_epi32(_mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0),
                                                        _mm512_set1_epi32(i / 2 * 0x01010101)));
    __mmask64 set = _mm512_test_epi8_mask(spread, _mm512_set1_epi32(i % 2 ? (int)0x80402010 : 0x08040201));
    return _mm512_mask_add_epi8(c, set, c, _mm512_set1_epi8(16));
}
OP iv ci(const int n) { return _mm512_set1_epi32(n); }
OP iv field(iv v, const int n, const int mask) { return _mm512_and_si512(_mm512_srli_epi32(v, n), ci(mask)); }
OP iv sbyte_at(iv v, const int k) { return _mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * k), 24); }
OP iv addi(iv a, iv b) { return _mm512_add_epi32(a, b); }
OP iv subi(iv a, iv b) { return _mm512_sub_epi32(a, b); }
OP iv maxi(iv a, iv b) { return _mm512_max_epi32(a, b); }
OP iv ori(iv a, iv b) { return _mm512_or_si512(a, b); }
OP iv muli(iv a, iv b) { return _mm512_mullo_epi32(a, b); }
OP iv shl(iv a, const int n) { return _mm512_slli_epi32(a, n); }
OP fv cvt(iv a) { return _mm512_cvtepi32_ps(a); }
OP fv asf(iv a) { return _mm512_castsi512_ps(a); }
OP fv add(fv a, fv b) { return _mm512_add_ps(a, b); }
OP fv mul(fv a, fv b) { return _mm512_mul_ps(a, b); }
OP fv madd(fv a, fv b, fv c) { return _mm512_fmadd_ps(a, b, c); }
OP fv nmadd(fv a, fv b, fv c) { return _mm512_fnmadd_ps(a, b, c); }
OP fv lo16f(iv v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
OP fv hi16f(iv v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16))); }
OP fv lo16b(iv v) { return asf(_mm512_slli_epi32(v, 16)); }
OP fv hi16b(iv v) { return asf(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000))); }

OP iv dpbusd(iv s, iv c, iv x) { return _mm512_dpbusd_epi32(s, c, x); }
OP iv int16_pair(iv a, iv b) { return _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16)); }
OP iv madd16(iv a, iv b) { return _mm512_madd_epi16(a, b); }
OP iv half_sums(iv m0, iv m1, const mg_a8 *x) { return madd16(int16_pair(m0, m1), bci(x->half)); }
OP iv flip(iv v) { return _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80)); }

#include "vec_x86_vnni.h"
#include "vec_tile.h"

/* One block of 32: vec_generic.c's act_a8. */
static TGT void act_a8_avx512(const float *x, int64_t cols, void *dst) {
    int8_t *q = mg_a8_q(dst);
    mg_a8 *k = mg_a8_blocks(dst, cols);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (int64_t b = 0; b < cols / 32; b++, k++, x += 32) {
        __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
        __m512i m0 = _mm512_and_si512(_mm512_castps_si512(x0), magnitude);
        __m512i m1 = _mm512_and_si512(_mm512_castps_si512(x1), magnitude);
        const uint32_t amax = (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(m0, m1));
        const int finite = amax < 0x7f800000;
        float scale = finite ? mg_float_of(amax) / 127.0f : mg_float_of(0x7fc00000);
        if (scale < 0x1p-126f) scale = 0;
        const __mmask16 keep = finite ? 0xffff : 0;
        const __m512 inv = _mm512_set1_ps(finite && scale > 0 ? 1.0f / scale : 0);
        __m512i q0 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x0, inv));
        __m512i q1 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x1, inv));
        _mm_storeu_si128((__m128i *)(q + 32 * b), _mm512_cvtepi32_epi8(q0));
        _mm_storeu_si128((__m128i *)(q + 32 * b + 16), _mm512_cvtepi32_epi8(q1));
        const int s0 = _mm512_reduce_add_epi32(q0), s1 = _mm512_reduce_add_epi32(q1);
        *k = (mg_a8){scale, scale * (s0 + s1), s0 + s1, {(int16_t)s0, (int16_t)s1}};
    }
}

const mg_kernel_table mg_table_avx512 = {
    .group = {
#define Q(id, name, elems, bytes, act, units, scales) [id] = name##_avx512,
#define PLAIN(...)
#include "quants.def"
#undef Q
    },
    .act = {[MG_ACT_A8] = act_a8_avx512},
};
#endif
