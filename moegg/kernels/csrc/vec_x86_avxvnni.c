/* vec_x86_avxvnni.c - the dot products for AVX-VNNI: vpdpbusd on 256 bits, for CPUs that have it without AVX-512. */
#if defined(__x86_64__)
#define TGT __attribute__((target("avx2,fma,f16c,avxvnni")))
#define FN(name) name##_avxvnni
#include "vec_x86_256.h"

/* Units outside, rows inside: T independent chains hide the latency of vpdpbusd. */
OP void dot_units(const iv *c, const void *const *a, int64_t b, int first, int last, iv *s, const int T) {
    _Pragma("GCC unroll 8") for (int i = first; i < last; i++)
        _Pragma("GCC unroll 4") for (int t = 0; t < T; t++)
            s[t] = _mm256_dpbusd_avx_epi32(i == first ? izero() : s[t], c[i], bci(mg_a8_q(a[t]) + 32 * b + 4 * i));
}
OP void dot_u4_avxvnni(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    dot_units(c, a, b, 0, 8, s, T);
}
OP void dot_u5_avxvnni(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    dot_units(c, a, b, 0, 8, s, T);
}
OP void dot_u6_avxvnni(const iv *c, iv sc, const int k, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    iv h[TILE_MAX], sc0 = sbyte_at(sc, k), sc1 = sbyte_at(sc, k + 1);
    iv both = _mm256_blend_epi16(sc0, _mm256_slli_epi32(sc1, 16), 0xaa);        /* the two scales as int16 */
    dot_units(c, a, b, 0, 4, s, T);
    dot_units(c, a, b, 4, 8, h, T);
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) {
        iv zero_point = _mm256_madd_epi16(both, bci(mg_a8_blocks(a[t], cols)[b].half));
        s[t] = subi(addi(muli(sc0, s[t]), muli(sc1, h[t])), shl(zero_point, 5));
    }
}
/* Signed weights become unsigned by w ^ 0x80 = w + 128; 128 times the sum of x is taken off again. */
OP void dot_s8_avxvnni(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    iv u[8];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) u[i] = _mm256_xor_si256(c[i], _mm256_set1_epi8((char)0x80));
    dot_units(u, a, b, 0, 8, s, T);
    _Pragma("GCC unroll 4") for (int t = 0; t < T; t++) s[t] = subi(s[t], shl(bci(&mg_a8_blocks(a[t], cols)[b].s), 7));
}

#include "vec_tile.h"

const mg_kernel_table mg_table_avxvnni = {
    .group = {
#define Q(id, name, elems, bytes, act, units) [id] = name##_avxvnni,
#include "quants.def"
#undef Q
    },
    .act = {[MG_ACT_A8] = act_a8_avxvnni},
};
#endif
