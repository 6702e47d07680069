/* vec_x86_avx2.c - the dot products for AVX2 with FMA and F16C: vpmaddubsw, sums in 16 bits as long as the codes allow.
 *
 * Pairs are at most 2 * 15 * 127, 2 * 31 * 127, 2 * 63 * 127 and, for signed bytes by |w| and sign(w) * x, 2 * 128 * 127; so
 * 8, 4, 2 and 1 of them fit below 32768.
 */
#if defined(__x86_64__)
#define TGT __attribute__((target("avx2,fma,f16c")))
#define FN(name) name##_avx2
#include "vec_x86_256.h"

OP iv pairs(iv c, const void *a, int64_t b, const int i) { return _mm256_maddubs_epi16(c, bci(mg_a8_q(a) + 32 * b + 4 * i)); }
OP iv add16(iv a, iv b) { return _mm256_add_epi16(a, b); }
OP iv widen(iv v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }
OP iv pairs4(const iv *c, const void *a, int64_t b, const int i) {
    return add16(add16(pairs(c[i], a, b, i), pairs(c[i + 1], a, b, i + 1)),
                 add16(pairs(c[i + 2], a, b, i + 2), pairs(c[i + 3], a, b, i + 3)));
}
OP void dot_u4_avx2(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) s[t] = widen(add16(pairs4(c, a[t], b, 0), pairs4(c, a[t], b, 4)));
}
OP void dot_u5_avx2(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) s[t] = addi(widen(pairs4(c, a[t], b, 0)), widen(pairs4(c, a[t], b, 4)));
}
/* The scale is multiplied in as pairs are widened; two pairs of products below 16002 each fit in 16 bits. */
OP iv dot16_u6(const iv *c, iv sc, const void *a, int64_t b, const int i) {
    return addi(_mm256_madd_epi16(sc, add16(pairs(c[i], a, b, i), pairs(c[i + 1], a, b, i + 1))),
                _mm256_madd_epi16(sc, add16(pairs(c[i + 2], a, b, i + 2), pairs(c[i + 3], a, b, i + 3))));
}
OP void dot_halves_avx2(const iv *c, iv sc0, iv sc1, const int zero, const void *const *a, int64_t cols, int64_t b, iv *s,
                        const int T) {
    iv twice0 = int16_pair(sc0, sc0), twice1 = int16_pair(sc1, sc1);
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) {
        s[t] = addi(dot16_u6(c, twice0, a[t], b, 0), dot16_u6(c, twice1, a[t], b, 4));
        if (zero) s[t] = subi(s[t], shl(half_sums(sc0, sc1, mg_a8_blocks(a[t], cols) + b), __builtin_ctz(zero)));
    }
}
OP void dot_s8_avx2(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) {
        iv sum = izero();
        _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {
            iv x = bci(mg_a8_q(a[t]) + 32 * b + 4 * i);
            sum = addi(sum, widen(_mm256_maddubs_epi16(_mm256_abs_epi8(c[i]), _mm256_sign_epi8(x, c[i]))));
        }
        s[t] = sum;
    }
}

#include "vec_tile.h"

const mg_kernel_table mg_table_avx2 = {
    .group = {
#define Q(id, name, elems, bytes, act, units, scales) [id] = name##_avx2,
#define PLAIN(...)
#include "quants.def"
#undef Q
    },
    .act = {[MG_ACT_A8] = act_a8_avx2},
};
#endif
