/* vec_x86_vnni.h - the dot products of the levels that have vpdpbusd (avxvnni, avx512), written once.
 *
 * No include guard: the includer defines OP, FN(name), TILE_MAX, vec_tile.h's integer primitives, and
 *   dpbusd(s, c, x) s + the dot of 4 unsigned by 4 signed bytes per lane; flip(v) v with the top bit of every byte turned over
 */
/* Units outside, rows inside: T independent chains hide the latency of vpdpbusd. */
OP void dot_units(const iv *c, const void *const *a, int64_t b, int first, int last, iv *s, const int T) {
    _Pragma("GCC unroll 8") for (int i = first; i < last; i++)
        _Pragma("GCC unroll 8") for (int t = 0; t < T; t++)
            s[t] = dpbusd(i == first ? izero() : s[t], c[i], bci(mg_a8_q(a[t]) + 32 * b + 4 * i));
}
OP void FN(dot_u4)(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    dot_units(c, a, b, 0, 8, s, T);
}
OP void FN(dot_u5)(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    dot_units(c, a, b, 0, 8, s, T);
}
OP void FN(dot_halves)(const iv *c, iv sc0, iv sc1, const int zero, const void *const *a, int64_t cols, int64_t b, iv *s,
                       const int T) {
    iv h[TILE_MAX];
    dot_units(c, a, b, 0, 4, s, T);
    dot_units(c, a, b, 4, 8, h, T);
    _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) {
        s[t] = addi(muli(sc0, s[t]), muli(sc1, h[t]));
        if (zero) s[t] = subi(s[t], shl(half_sums(sc0, sc1, mg_a8_blocks(a[t], cols) + b), __builtin_ctz(zero)));
    }
}
/* Signed weights become unsigned by w ^ 0x80 = w + 128; 128 times the sum of x is taken off again. */
OP void FN(dot_s8)(const iv *c, const void *const *a, int64_t cols, int64_t b, iv *s, const int T) {
    iv u[8];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) u[i] = flip(c[i]);
    dot_units(u, a, b, 0, 8, s, T);
    _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) s[t] = subi(s[t], shl(bci(&mg_a8_blocks(a[t], cols)[b].s), 7));
}
