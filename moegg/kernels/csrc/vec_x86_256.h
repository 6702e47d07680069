/* vec_x86_256.h - what the 256-bit levels (avx2, avxvnni) share: two vectors of 8 rows per group, and the activation rows.
 *
 * No include guard: the includer defines TGT and FN(name) first, then its dot products, then includes vec_tile.h.
 */
#include <immintrin.h>

#include "fp16.h"
#include "kernels.h"
#include "quants.h"

#define OP static inline __attribute__((always_inline)) TGT
#define LANES 8
#define TILE_MAX 4
typedef __m256i iv;
typedef __m256 fv;

OP iv ld(const void *p) { return _mm256_loadu_si256(p); }
OP iv bci(const void *p) { return _mm256_set1_epi32((int)mg_ld32(p)); }
OP fv bcf(const float *p) { return _mm256_broadcast_ss(p); }
OP fv halves(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
OP iv words(const void *p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128(p)); }
OP iv bytes(const void *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
OP iv lookup(const int8_t *grid, iv v) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)grid)), v);
}
OP void st(float *p, fv v) { _mm256_storeu_ps(p, v); }
OP iv izero(void) { return _mm256_setzero_si256(); }
OP fv zero(void) { return _mm256_setzero_ps(); }
OP iv lo4(iv v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
OP iv hi4(iv v) { return lo4(_mm256_srli_epi32(v, 4)); }
OP iv merge(iv c, iv v, const int shift, const int mask) {
    v = shift > 0 ? _mm256_slli_epi32(v, shift > 0 ? shift : 0) : shift < 0 ? _mm256_srli_epi32(v, shift < 0 ? -shift : 0) : v;
    return _mm256_or_si256(c, _mm256_and_si256(v, _mm256_set1_epi8((char)mask)));
}
OP iv fifth(iv c, iv h, const int i) {
    const int byte = i / 2 * 0x01010101;
    iv spread = _mm256_shuffle_epi8(h, _mm256_setr_epi32(byte, byte + 0x04040404, byte + 0x08080808, byte + 0x0c0c0c0c,
                                                         byte, byte + 0x04040404, byte + 0x08080808, byte + 0x0c0c0c0c));
    iv bits = _mm256_set1_epi32(i % 2 ? (int)0x80402010 : 0x08040201);
    iv set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bits), bits);
    return _mm256_or_si256(c, _mm256_and_si256(set, _mm256_set1_epi8(16)));
}
OP iv ci(const int n) { return _mm256_set1_epi32(n); }
OP iv field(iv v, const int n, const int mask) { return _mm256_and_si256(_mm256_srli_epi32(v, n), ci(mask)); }
OP iv sbyte_at(iv v, const int k) { return _mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * k), 24); }
OP iv addi(iv a, iv b) { return _mm256_add_epi32(a, b); }
OP iv subi(iv a, iv b) { return _mm256_sub_epi32(a, b); }
OP iv maxi(iv a, iv b) { return _mm256_max_epi32(a, b); }
OP iv ori(iv a, iv b) { return _mm256_or_si256(a, b); }
OP iv muli(iv a, iv b) { return _mm256_mullo_epi32(a, b); }
OP iv shl(iv a, const int n) { return _mm256_slli_epi32(a, n); }
OP fv cvt(iv a) { return _mm256_cvtepi32_ps(a); }
OP fv asf(iv a) { return _mm256_castsi256_ps(a); }
OP fv add(fv a, fv b) { return _mm256_add_ps(a, b); }
OP fv mul(fv a, fv b) { return _mm256_mul_ps(a, b); }
OP fv madd(fv a, fv b, fv c) { return _mm256_fmadd_ps(a, b, c); }
OP fv nmadd(fv a, fv b, fv c) { return _mm256_fnmadd_ps(a, b, c); }
/* The low halves of all lanes in order: gathered within each 128 bits, then the two quarters put side by side. */
OP fv low_halves(iv v) {
    const iv even = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,
                                     0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, even), 0x08)));
}
OP fv lo16f(iv v) { return low_halves(v); }
OP fv hi16f(iv v) { return low_halves(_mm256_srli_epi32(v, 16)); }
OP fv lo16b(iv v) { return asf(_mm256_slli_epi32(v, 16)); }
OP fv hi16b(iv v) { return asf(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000))); }

/* The low 16 bits of a, then of b, in every lane; sums of products of int16 pairs. */
OP iv int16_pair(iv a, iv b) { return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa); }
OP iv madd16(iv a, iv b) { return _mm256_madd_epi16(a, b); }
OP iv half_sums(iv m0, iv m1, const mg_a8 *x) { return madd16(int16_pair(m0, m1), bci(x->half)); }

OP int32_t sum8(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
OP uint32_t max8(__m256i v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

/* One block of 32: vec_generic.c's act_a8. */
static TGT void FN(act_a8)(const float *x, int64_t cols, void *dst) {
    int8_t *q = mg_a8_q(dst);
    mg_a8 *k = mg_a8_blocks(dst, cols);
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t b = 0; b < cols / 32; b++, k++, x += 32) {
        __m256 v[4];
        __m256i m = izero(), i[4];
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
            v[j] = _mm256_loadu_ps(x + 8 * j);
            m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude));
        }
        const uint32_t amax = max8(m);
        const int finite = amax < 0x7f800000;
        float scale = finite ? mg_float_of(amax) / 127.0f : mg_float_of(0x7fc00000);
        if (scale < 0x1p-126f) scale = 0;
        const __m256 inv = _mm256_set1_ps(finite && scale > 0 ? 1.0f / scale : 0);
        const __m256i keep = _mm256_set1_epi32(-finite);
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++)
            i[j] = _mm256_and_si256(keep, _mm256_cvtps_epi32(_mm256_mul_ps(v[j], inv)));
        const int s0 = sum8(addi(i[0], i[1])), s1 = sum8(addi(i[2], i[3]));
        __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(i[0], i[1]), _mm256_packs_epi32(i[2], i[3]));
        _mm256_storeu_si256((__m256i *)(q + 32 * b), _mm256_permutevar8x32_epi32(bytes, order));
        *k = (mg_a8){scale, scale * (s0 + s1), s0 + s1, {(int16_t)s0, (int16_t)s1}};
    }
}
