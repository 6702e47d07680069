/* vec_tile.h - the group kernels of every SIMD level, written once over a few vector primitives.
 *
 * No include guard: vec_*.c define the primitives of a level and include this. A vector holds LANES of the 16 rows of a group,
 * a group is PARTS vectors. A tile is T activation rows against which codes are unpacked once; T is a constant after inlining.
 * The arithmetic is that of vec_generic.c, operation by operation.
 *
 * The includer defines TGT (target attribute), FN(name) (level suffix), LANES, TILE_MAX, types iv and fv, and
 *   ld(p) 4 * LANES bytes; words(p), bytes(p) LANES u16 or u8 as int32; bci(p), bcf(p) one int32 or float in every lane
 *   halves(p) LANES f16 as floats; st(p, v); izero, zero; lookup(grid, v) byte v of a grid of 16 for every byte v
 *   lo4(v), hi4(v) nibbles of every byte; merge(c, v, shift, mask) c | (v << shift & mask) per byte, shift may be negative
 *   fifth(c, h, i) c with bit 4 of byte k set where bit 4i + k of the lane's h is
 *   field(v, n, mask) v >> n & mask, sbyte_at(v, k) signed byte k of every lane; ci(n) n in every lane
 *   addi, subi, muli, maxi, ori, shl(v, n), cvt to float, asf the same bits as float
 *   mul, add, madd(a, b, c) = a * b + c, nmadd(a, b, c) = c - a * b; lo16f, hi16f (f16 halves of every lane), lo16b, hi16b (bf16)
 *   dot_u4, dot_u5, dot_s8(c, a, cols, b, s, T): s[t] = exact dot of 8 code vectors with block b of a[t]; unsigned codes of that
 *   many bits, or signed bytes
 *   dot_halves(c, sc0, sc1, zero, a, cols, b, s, T): of unsigned codes of up to 6 bits less zero, each half times its scale,
 *   below 2^15; half_sums(m0, m1, x): the sum of the two halves' m times the sum of x, an mg_a8
 */
#define PARTS (MG_GROUP / LANES)
#define PIECE static inline __attribute__((always_inline)) TGT
#define TILE(name)                                                                                                  \
    PIECE void FN(name##_tile)(const uint8_t *w, const int64_t cols, const void *const *a, float *const *y, const int T)
#define EACH_PART _Pragma("GCC unroll 4") for (int p = 0; p < PARTS; p++)
/* Keeps the compiler from holding one part's broadcasts for the next part, which only fills the stack when registers are few. */
#define FENCE if (PARTS == 2) __asm__ volatile("" ::: "memory");
#define EACH_ROW _Pragma("GCC unroll 8") for (int t = 0; t < T; t++)
#define EACH_UNIT(n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)
#define BEGIN fv acc[TILE_MAX][PARTS]; EACH_ROW EACH_PART acc[t][p] = zero();
#define END EACH_ROW EACH_PART st(y[t] + LANES * p, acc[t][p]);
#define DX bcf(&mg_a8_blocks(a[t], cols)[b].d)
#define DS bcf(&mg_a8_blocks(a[t], cols)[b].ds)
#define SUM bci(&mg_a8_blocks(a[t], cols)[b].s)
#define HALVES(m0, m1) half_sums(m0, m1, mg_a8_blocks(a[t], cols) + b)

/* Asks for the next block column's lines 8 KiB ahead. Measured on Zen 5, one row of activations, matrices far larger than L3:
 * q4_k 22 -> 34 GB/s, q6_k 19 -> 32, q4_0 36 -> 39 of 41 GB/s that a plain read loop gets; 4 and 16 KiB are worse. */
PIECE void FN(prefetch)(const uint8_t *w, const int bytes) {
    _Pragma("GCC unroll 16") for (int i = 0; i < bytes; i += 64) __builtin_prefetch(w + 8192 + i, 0, 3);
}

/* u: the first unit of a part; the next unit is 64 bytes on. */
PIECE void FN(nibbles)(const uint8_t *u, iv *c) {
    EACH_UNIT(4) {
        iv v = ld(u + 64 * i);
        c[i] = lo4(v);
        c[i + 4] = hi4(v);
    }
}

PIECE void FN(half_nibbles)(const uint8_t *u, const int high, iv *c) {
    EACH_UNIT(8) c[i] = high ? hi4(ld(u + 64 * i)) : lo4(ld(u + 64 * i));
}

TILE(q4_0) {
    BEGIN
    for (int64_t b = 0; b < cols / 32; b++, w += 18 * 16)
        EACH_PART {
            FENCE if (p == 0) FN(prefetch)(w, 18 * 16);
            iv c[8], s[TILE_MAX];
            FN(nibbles)(w + 32 + 4 * LANES * p, c);
            FN(dot_u4)(c, a, cols, b, s, T);
            fv d = halves(w + 2 * LANES * p);
            EACH_ROW acc[t][p] = madd(mul(d, DX), cvt(subi(s[t], shl(SUM, 3))), acc[t][p]);
        }
    END
}

TILE(q4_1) {
    BEGIN
    for (int64_t b = 0; b < cols / 32; b++, w += 20 * 16)
        EACH_PART {
            FENCE if (p == 0) FN(prefetch)(w, 20 * 16);
            iv c[8], s[TILE_MAX];
            FN(nibbles)(w + 64 + 4 * LANES * p, c);
            FN(dot_u4)(c, a, cols, b, s, T);
            fv d = halves(w + 2 * LANES * p), m = halves(w + 32 + 2 * LANES * p);
            EACH_ROW {
                acc[t][p] = madd(mul(d, DX), cvt(s[t]), acc[t][p]);
                acc[t][p] = madd(m, DS, acc[t][p]);
            }
        }
    END
}

TILE(q5_0) {
    BEGIN
    for (int64_t b = 0; b < cols / 32; b++, w += 22 * 16)
        EACH_PART {
            FENCE if (p == 0) FN(prefetch)(w, 22 * 16);
            iv c[8], s[TILE_MAX], h = ld(w + 32 + 4 * LANES * p);
            FN(nibbles)(w + 96 + 4 * LANES * p, c);
            EACH_UNIT(8) c[i] = fifth(c[i], h, i);
            FN(dot_u5)(c, a, cols, b, s, T);
            fv d = halves(w + 2 * LANES * p);
            EACH_ROW acc[t][p] = madd(mul(d, DX), cvt(subi(s[t], shl(SUM, 4))), acc[t][p]);
        }
    END
}

TILE(q5_1) {
    BEGIN
    for (int64_t b = 0; b < cols / 32; b++, w += 24 * 16)
        EACH_PART {
            FENCE if (p == 0) FN(prefetch)(w, 24 * 16);
            iv c[8], s[TILE_MAX], h = ld(w + 64 + 4 * LANES * p);
            FN(nibbles)(w + 128 + 4 * LANES * p, c);
            EACH_UNIT(8) c[i] = fifth(c[i], h, i);
            FN(dot_u5)(c, a, cols, b, s, T);
            fv d = halves(w + 2 * LANES * p), m = halves(w + 32 + 2 * LANES * p);
            EACH_ROW {
                acc[t][p] = madd(mul(d, DX), cvt(s[t]), acc[t][p]);
                acc[t][p] = madd(m, DS, acc[t][p]);
            }
        }
    END
}

TILE(q8_0) {
    BEGIN
    for (int64_t b = 0; b < cols / 32; b++, w += 34 * 16)
        EACH_PART {
            FENCE if (p == 0) FN(prefetch)(w, 34 * 16);
            iv c[8], s[TILE_MAX];
            EACH_UNIT(8) c[i] = ld(w + 32 + 64 * i + 4 * LANES * p);
            FN(dot_s8)(c, a, cols, b, s, T);
            fv d = halves(w + 2 * LANES * p);
            EACH_ROW acc[t][p] = madd(mul(d, DX), cvt(s[t]), acc[t][p]);
        }
    END
}

TILE(iq4_nl) {
    BEGIN
    for (int64_t b = 0; b < cols / 32; b++, w += 18 * 16)
        EACH_PART {
            FENCE if (p == 0) FN(prefetch)(w, 18 * 16);
            iv c[8], s[TILE_MAX];
            FN(nibbles)(w + 32 + 4 * LANES * p, c);
            EACH_UNIT(8) c[i] = lookup(mg_iq4_grid, c[i]);
            FN(dot_s8)(c, a, cols, b, s, T);
            fv d = halves(w + 2 * LANES * p);
            EACH_ROW acc[t][p] = madd(mul(d, DX), cvt(s[t]), acc[t][p]);
        }
    END
}

/* The grid is looked up with 12 added, which makes it five unsigned bits. 2^(e - 128): fp16.h mg_e8m0_half. */
TILE(mxfp4) {
    static const int8_t GRID[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    BEGIN
    for (int64_t b = 0; b < cols / 32; b++, w += 17 * 16)
        EACH_PART {
            FENCE if (p == 0) FN(prefetch)(w, 17 * 16);
            iv c[8], s[TILE_MAX], e = bytes(w + LANES * p);
            FN(nibbles)(w + 16 + 4 * LANES * p, c);
            EACH_UNIT(8) c[i] = lookup(GRID, c[i]);
            FN(dot_u5)(c, a, cols, b, s, T);
            fv d = asf(maxi(subi(shl(e, 23), ci(1 << 23)), shl(addi(e, ci(1)), 21)));
            EACH_ROW acc[t][p] = madd(mul(d, DX), cvt(subi(s[t], muli(SUM, ci(12)))), acc[t][p]);
        }
    END
}

TILE(iq4_xs) {
    BEGIN
    for (int64_t b0 = 0; b0 < cols / 32; b0 += 8, w += 136 * 16)
        EACH_PART {
            fv d = halves(w + 2 * LANES * p);
            iv high = words(w + 32 + 2 * LANES * p), low = ld(w + 64 + 4 * LANES * p);
            _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
                const int64_t b = b0 + j;
                FENCE if (p == 0) FN(prefetch)(w + 136 * 2 * j, 136 * 2);
                iv c[8], s[TILE_MAX];
                FN(nibbles)(w + 128 + 256 * j + 4 * LANES * p, c);
                EACH_UNIT(8) c[i] = lookup(mg_iq4_grid, c[i]);
                FN(dot_s8)(c, a, cols, b, s, T);
                fv dj = mul(d, cvt(subi(ori(field(low, 4 * j, 15), shl(field(high, 2 * j, 3), 4)), ci(32))));
                EACH_ROW acc[t][p] = madd(mul(dj, DX), cvt(s[t]), acc[t][p]);
            }
        }
    END
}

/* u: the first unit of a part; sub-block j of 32: two bits of each of 32 bytes that four sub-blocks share. */
PIECE void FN(crumbs)(const uint8_t *u, const int j, iv *c) {
    EACH_UNIT(8) c[i] = merge(izero(), ld(u + 512 * (j / 4) + 64 * i), -2 * (j % 4), 3);
}

/* Codes less one; BLOCKS of 32 share a scale D, the codes start at QS in the column. */
#define TERNARY_TILE(name, BLOCKS, BYTES, D, QS)                                                    \
    TILE(name) {                                                                                    \
        BEGIN                                                                                       \
        for (int64_t b0 = 0; b0 < cols / 32; b0 += BLOCKS, w += BYTES * 16)                         \
            EACH_PART {                                                                             \
                fv d = D;                                                                           \
                _Pragma("GCC unroll 8") for (int j = 0; j < BLOCKS; j++) {                          \
                    const int64_t b = b0 + j;                                                       \
                    FENCE if (p == 0) FN(prefetch)(w + BYTES * 16 / BLOCKS * j, BYTES * 16 / BLOCKS); \
                    iv c[8], s[TILE_MAX];                                                           \
                    FN(crumbs)(w + 16 * QS + 4 * LANES * p, j, c);                                  \
                    FN(dot_u4)(c, a, cols, b, s, T);                                                \
                    EACH_ROW acc[t][p] = madd(mul(d, DX), cvt(subi(s[t], SUM)), acc[t][p]);         \
                }                                                                                   \
            }                                                                                       \
        END                                                                                         \
    }

TERNARY_TILE(tq2_0, 8, 66, halves(w + 16 * 64 + 2 * LANES * p), 0)
TERNARY_TILE(ternary, 4, 34, asf(shl(words(w + 2 * LANES * p), 16)), 2)

#define MLX_TILE(name, WIDEN)                                                                       \
    TILE(name) {                                                                                    \
        BEGIN                                                                                       \
        for (int64_t b0 = 0; b0 < cols / 32; b0 += 2, w += 36 * 16)                                 \
            EACH_PART {                                                                             \
                fv d = WIDEN(w + 2 * LANES * p), m = WIDEN(w + 32 + 2 * LANES * p);                 \
                _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) {                               \
                    const int64_t b = b0 + j;                                                       \
                    FENCE if (p == 0) FN(prefetch)(w + 36 * 8 * j, 36 * 8);                         \
                    iv c[8], s[TILE_MAX];                                                           \
                    FN(half_nibbles)(w + 64 + 4 * LANES * p, j, c);                                 \
                    FN(dot_u4)(c, a, cols, b, s, T);                                                \
                    EACH_ROW {                                                                      \
                        acc[t][p] = madd(mul(d, DX), cvt(s[t]), acc[t][p]);                         \
                        acc[t][p] = madd(m, DS, acc[t][p]);                                         \
                    }                                                                               \
                }                                                                                   \
            }                                                                                       \
        END                                                                                         \
    }

#define BF16_HALVES(p) asf(shl(words(p), 16))
MLX_TILE(mlx4, BF16_HALVES)
MLX_TILE(mlx4_f16, halves)

TILE(q2_k) {
    BEGIN
    for (int64_t b0 = 0; b0 < cols / 32; b0 += 8, w += 84 * 16)
        EACH_PART {
            fv d = halves(w + 16 * 80 + 2 * LANES * p), dmin = halves(w + 16 * 82 + 2 * LANES * p);
            _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
                const int64_t b = b0 + j;
                const int k = j % 2 * 16;
                FENCE if (p == 0) FN(prefetch)(w + 84 * 2 * j, 84 * 2);
                iv c[8], s[TILE_MAX], v = ld(w + 64 * (j / 2) + 4 * LANES * p);
                FN(crumbs)(w + 16 * 16 + 4 * LANES * p, j, c);
                FN(dot_halves)(c, field(v, k, 15), field(v, k + 8, 15), 0, a, cols, b, s, T);
                iv m0 = field(v, k + 4, 15), m1 = field(v, k + 12, 15);
                EACH_ROW {
                    acc[t][p] = madd(mul(d, DX), cvt(s[t]), acc[t][p]);
                    acc[t][p] = nmadd(mul(dmin, DX), cvt(HALVES(m0, m1)), acc[t][p]);
                }
            }
        }
    END
}

TILE(q3_k) {
    BEGIN
    for (int64_t b0 = 0; b0 < cols / 32; b0 += 8, w += 110 * 16)
        EACH_PART {
            fv d = halves(w + 16 * 108 + 2 * LANES * p);
            const uint8_t *u = w + 16 * 96 + 4 * LANES * p;
            iv v0 = ld(u), v1 = ld(u + 64), v2 = ld(u + 128), sc[4];                    /* a byte per scale of 16 elements */
            sc[0] = merge(lo4(v0), v2, 4, 0x30);
            sc[1] = merge(lo4(v1), v2, 2, 0x30);
            sc[2] = merge(hi4(v0), v2, 0, 0x30);
            sc[3] = merge(hi4(v1), v2, -2, 0x30);
            _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
                const int64_t b = b0 + j;
                const int k = j % 2 * 16;
                FENCE if (p == 0) FN(prefetch)(w + 110 * 2 * j, 110 * 2);
                iv c[8], s[TILE_MAX];
                FN(crumbs)(w + 16 * 32 + 4 * LANES * p, j, c);
                EACH_UNIT(8) c[i] = merge(c[i], ld(w + 64 * i + 4 * LANES * p), 2 - j, 4);
                iv sc0 = subi(field(sc[j / 2], k, 63), ci(32)), sc1 = subi(field(sc[j / 2], k + 8, 63), ci(32));
                FN(dot_halves)(c, sc0, sc1, 4, a, cols, b, s, T);
                EACH_ROW acc[t][p] = madd(mul(d, DX), cvt(s[t]), acc[t][p]);
            }
        }
    END
}

/* The 6-bit scales (sc[0] of sub-blocks 0..3, sc[1] of 4..7) and minima of a super-block, one per byte; u: their three units. */
PIECE void FN(scales)(const uint8_t *u, iv *sc, iv *mn) {
    iv v0 = ld(u), v1 = ld(u + 64), v2 = ld(u + 128);
    sc[0] = merge(izero(), v0, 0, 0x3f);
    mn[0] = merge(izero(), v1, 0, 0x3f);
    sc[1] = merge(lo4(v2), v0, -2, 0x30);
    mn[1] = merge(hi4(v2), v1, -2, 0x30);
}

/* qs, qh: where nibbles and fifth bits start in the column; qh = 0: four bits. */
#define K_TILE(name, BYTES, QS, QH, DOT)                                                            \
    TILE(name) {                                                                                    \
        BEGIN                                                                                       \
        for (int64_t b0 = 0; b0 < cols / 32; b0 += 8, w += BYTES * 16)                              \
            EACH_PART {                                                                             \
                fv d = halves(w + 2 * LANES * p), dmin = halves(w + 32 + 2 * LANES * p);            \
                iv sc[2], mn[2];                                                                    \
                FN(scales)(w + 64 + 4 * LANES * p, sc, mn);                                         \
                _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {                               \
                    const int64_t b = b0 + j;                                                       \
                    FENCE if (p == 0) FN(prefetch)(w + BYTES * 2 * j, BYTES * 2);           \
                    iv c[8], s[TILE_MAX];                                                           \
                    FN(half_nibbles)(w + 16 * QS + 512 * (j / 2) + 4 * LANES * p, j % 2, c);        \
                    if (QH) EACH_UNIT(8) c[i] = merge(c[i], ld(w + 16 * QH + 64 * i + 4 * LANES * p), 4 - j, 0x10); \
                    FN(DOT)(c, a, cols, b, s, T);                                                   \
                    fv dj = mul(d, cvt(field(sc[j / 4], j % 4 * 8, 255)));                                 \
                    fv mj = mul(dmin, cvt(field(mn[j / 4], j % 4 * 8, 255)));                              \
                    EACH_ROW {                                                                      \
                        acc[t][p] = madd(mul(dj, DX), cvt(s[t]), acc[t][p]);                         \
                        acc[t][p] = nmadd(mj, DS, acc[t][p]);                                         \
                    }                                                                               \
                }                                                                                   \
            }                                                                                       \
        END                                                                                         \
    }

K_TILE(q4_k, 144, 16, 0, dot_u4)
K_TILE(q5_k, 176, 48, 16, dot_u5)

TILE(q6_k) {
    BEGIN
    for (int64_t b0 = 0; b0 < cols / 32; b0 += 8, w += 210 * 16)
        EACH_PART {
            fv d = halves(w + 16 * 208 + 2 * LANES * p);
            _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
                const int64_t b = b0 + j;
                FENCE if (p == 0) FN(prefetch)(w + 210 * 2 * j, 210 * 2);
                iv c[8], s[TILE_MAX], sc = ld(w + 16 * 192 + 64 * (j / 2) + 4 * LANES * p);
                FN(half_nibbles)(w + 1024 * (j / 4) + 512 * (j % 2) + 4 * LANES * p, j % 4 / 2, c);
                EACH_UNIT(8) c[i] = merge(c[i], ld(w + 16 * 128 + 512 * (j / 4) + 64 * i + 4 * LANES * p), 4 - j % 4 * 2, 0x30);
                FN(dot_halves)(c, sbyte_at(sc, j % 2 * 2), sbyte_at(sc, j % 2 * 2 + 1), 32, a, cols, b, s, T);
                EACH_ROW acc[t][p] = madd(mul(d, DX), cvt(s[t]), acc[t][p]);
            }
        }
    END
}

/* Even and odd elements in two sums. */
#define FLOAT_TILE(name, EVEN, ODD, PAIR_BYTES)                                                     \
    TILE(name) {                                                                                    \
        fv odd[TILE_MAX][PARTS];                                                                    \
        BEGIN                                                                                       \
        EACH_ROW EACH_PART odd[t][p] = zero();                                                      \
        for (int64_t k = 0; k < cols; k += 2, w += PAIR_BYTES)                                      \
            EACH_PART {                                                                             \
                const uint8_t *u = w + 4 * LANES * p;                                               \
                if (p == 0) FN(prefetch)(w, PAIR_BYTES);                                            \
                fv even_w = EVEN, odd_w = ODD;                                                      \
                EACH_ROW {                                                                          \
                    const float *x = (const float *)a[t] + k;                                       \
                    acc[t][p] = madd(even_w, bcf(x), acc[t][p]);                                     \
                    odd[t][p] = madd(odd_w, bcf(x + 1), odd[t][p]);                                  \
                }                                                                                   \
            }                                                                                       \
        EACH_ROW EACH_PART acc[t][p] = add(acc[t][p], odd[t][p]);                                   \
        END                                                                                         \
    }

FLOAT_TILE(f32, asf(ld(u)), k + 1 < cols ? asf(ld(u + 64)) : zero(), 128)
FLOAT_TILE(f16, lo16f(ld(u)), hi16f(ld(u)), 64)
FLOAT_TILE(bf16, lo16b(ld(u)), hi16b(ld(u)), 64)

/* Two e4m3 in the upper bytes of a lane's halves as f16: fp16.h mg_e4m3_to_f16. */
PIECE iv FN(e4m3)(iv v) {
    iv magnitude = field(v, 1, 0x3f803f80);
    return ori(ori(field(v, 0, (int)0x80008000), magnitude), field(addi(magnitude, ci(0x00800080)), 0, 0x40004000));
}

#define FP8_TILE(name, ELEMS)                                                                       \
    TILE(name) {                                                                                    \
        fv odd[TILE_MAX][PARTS];                                                                    \
        BEGIN                                                                                       \
        EACH_ROW EACH_PART odd[t][p] = zero();                                                      \
        for (int64_t k0 = 0; k0 < cols; k0 += ELEMS, w += (ELEMS + 4) * 16)                         \
            EACH_PART {                                                                             \
                const uint8_t *u = w + 4 * LANES * p;                                               \
                const float times = 256;                                                            \
                fv d = mul(asf(ld(u)), bcf(&times));                                                \
                for (int i = 0; i < ELEMS / 4; i++) {                                               \
                    u += 64;                                                                        \
                    if (p == 0) FN(prefetch)(u, 64);                                                \
                    iv v = ld(u), q[2] = {FN(e4m3)(shl(v, 8)), FN(e4m3)(v)};                        \
                    fv w0 = mul(lo16f(q[0]), d), w1 = mul(lo16f(q[1]), d);                          \
                    fv w2 = mul(hi16f(q[0]), d), w3 = mul(hi16f(q[1]), d);                          \
                    EACH_ROW {                                                                      \
                        const float *x = (const float *)a[t] + k0 + 4 * i;                          \
                        acc[t][p] = madd(w0, bcf(x), acc[t][p]);                                    \
                        odd[t][p] = madd(w1, bcf(x + 1), odd[t][p]);                                \
                        acc[t][p] = madd(w2, bcf(x + 2), acc[t][p]);                                \
                        odd[t][p] = madd(w3, bcf(x + 3), odd[t][p]);                                \
                    }                                                                               \
                }                                                                                   \
            }                                                                                       \
        EACH_ROW EACH_PART acc[t][p] = add(acc[t][p], odd[t][p]);                                   \
        END                                                                                         \
    }

FP8_TILE(fp8_32, 32)
FP8_TILE(fp8_128, 128)

/* Whole tiles of MAX activation rows, then one of what is left: a batch of answers gives most experts one to seven rows. Measured on
 * Zen 5, q4_0 of 2048 columns from memory, one thread: 38, 32, 29, 26 GB/s for 3, 5, 6, 7 rows; 29, 26, 24, 19 in powers of two.
 * Float kernels have two sums per part and row: where a group is several parts, more than two rows do not fit the registers
 * (bf16, avx2: 34 GMAC/s with four, 55 with two). */
#define ROWS_A8 TILE_MAX
#define ROWS_F32 (PARTS == 1 ? TILE_MAX : 2)
#define GROUP(name, MAX)                                                                                        \
    static TGT void FN(name)(const uint8_t *w, int64_t cols, const void *const *a, int n, float *const *y) {    \
        for (; n >= MAX; n -= MAX, a += MAX, y += MAX) FN(name##_tile)(w, cols, a, y, MAX);                     \
        if (n == 1) FN(name##_tile)(w, cols, a, y, 1);                                                          \
        if (MAX > 2 && n == 2) FN(name##_tile)(w, cols, a, y, 2);                                               \
        if (MAX > 2 && n == 3) FN(name##_tile)(w, cols, a, y, 3);                                               \
        if (MAX > 4 && n == 4) FN(name##_tile)(w, cols, a, y, 4);                                               \
        if (MAX > 4 && n == 5) FN(name##_tile)(w, cols, a, y, 5);                                               \
        if (MAX > 4 && n == 6) FN(name##_tile)(w, cols, a, y, 6);                                               \
        if (MAX > 4 && n == 7) FN(name##_tile)(w, cols, a, y, 7);                                               \
    }

#define Q(id, name, elems, bytes, act, units, scales) GROUP(name, ROWS_##act)
#define PLAIN(...)
#include "quants.def"
#undef Q

#undef PARTS
#undef PIECE
#undef TILE
#undef EACH_PART
#undef FENCE
#undef EACH_ROW
#undef EACH_UNIT
#undef BEGIN
#undef END
#undef DX
#undef DS
#undef SUM
#undef HALVES
#undef K_TILE
#undef TERNARY_TILE
#undef MLX_TILE
#undef BF16_HALVES
#undef FLOAT_TILE
#undef FP8_TILE
#undef ROWS_A8
#undef ROWS_F32
#undef GROUP
