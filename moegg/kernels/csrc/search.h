/* search.h - the searches for scales of blocks, compiled once per CPU level; all levels give the same bits.
 *
 * 16 tries lie side by side, one per lane; sums go over the elements in order, lane by lane. Values of no meaning (NaN, infinity)
 * give defined but useless answers. n: elements of a sub-block, 16 or 32. Codes in lo..hi, or of iq4's grid.
 */
#ifndef MOEGG_SEARCH_H
#define MOEGG_SEARCH_H
#include <stdint.h>

#include "quants.h"

/* One sub-block x ~ d q + m: what was found, the mean code, and the sums of w and w x. */
typedef struct { float d, m, bend, W, X; } mg_fit;

typedef struct {
    /* Weights w of the error of x[n]: what the columns are worth, or NULL, times a factor by which a large element matters more and a
     * small one still matters. */
    void (*weigh)(const float *x, const float *worth, int n, float *w);
    /* The d of x ~ d q; lo < 0. */
    float (*scale)(const float *x, const float *w, int n, float lo, float hi);
    float (*scale_iq4)(const float *x, const float *w, int n);
    /* d and m of x ~ d q + m, q in 0..top. */
    mg_fit (*affine)(const float *x, const float *w, int n, float top);
    /* One super-block of 256 / n sub-blocks x ~ d sc q - dmin mn, q in 0..top, sc and mn in 0..most. */
    void (*affine_k)(const float *x, const float *worth, int n, int top, int most, mg_f16 *d, mg_f16 *dmin, int *sc, int *mn, uint8_t *q);
    /* One super-block of 16 sub-blocks x ~ d sc (q - half), q in 0..2 half - 1, sc in -most..most - 1. Returns d. */
    mg_f16 (*symmetric_k)(const float *x, const float *worth, int half, int most, int *sc, uint8_t *q);
    /* One super-block of 8 sub-blocks x ~ d sc grid[q], sc in -32..31. Returns d. */
    mg_f16 (*iq4_k)(const float *x, const float *worth, int *sc, uint8_t *q);
    /* The codes of x[n] ~ d grid[q]. */
    void (*codes_iq4)(const float *x, int n, float d, uint8_t *q);
} mg_search_table;

extern mg_search_table mg_search;               /* the table in force */
extern const mg_search_table mg_search_generic;
#if defined(__x86_64__)
extern const mg_search_table mg_search_avx2, mg_search_avx512;
#elif defined(__aarch64__)
extern const mg_search_table mg_search_neon;
#endif

#endif
