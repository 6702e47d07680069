/* vec_x86_avxvnni.c - the dot products for AVX-VNNI: vpdpbusd on 256 bits, for CPUs that have it without AVX-512. */
#if defined(__x86_64__)
#define TGT __attribute__((target("avx2,fma,f16c,avxvnni")))
#define FN(name) name##_avxvnni
#include "vec_x86_256.h"

OP iv dpbusd(iv s, iv c, iv x) { return _mm256_dpbusd_avx_epi32(s, c, x); }
OP iv flip(iv v) { return _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80)); }

#include "vec_x86_vnni.h"
#include "vec_tile.h"

const mg_kernel_table mg_table_avxvnni = {
    .group = {
#define Q(id, name, elems, bytes, act, units, scales) [id] = name##_avxvnni,
#define PLAIN(...)
#include "quants.def"
#undef Q
    },
    .act = {[MG_ACT_A8] = act_a8_avxvnni},
};
#endif
