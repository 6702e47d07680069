/* quantize_int.h - what the encoders share: small arithmetic and their prototypes. */
#ifndef MOEGG_QUANTIZE_INT_H
#define MOEGG_QUANTIZE_INT_H
#include "fp16.h"
#include "quants.h"

/* n blocks of floats to blocks; search: look for better scales; worth: of the columns, or NULL. */
#define QUANT(name) void mg_quant_##name(const float *x, mg_##name *b, int64_t n, int search, const float *worth)
#define READ_ONLY(...)
#define Q(id, name, elems, bytes, act, units, scales) QUANT(name);
#include "quants.def"
#undef Q

static inline float clamp(float v, float lo, float hi) { v = v > lo ? v : lo; return v < hi ? v : hi; }       /* NaN: lo */
static inline float nearest(float v) { return v + 12582912.0f - 12582912.0f; }           /* to even; |v| below 2^22 */
static inline float to_f16(float v) { return mg_f16_to_f32(mg_f32_to_f16(v)); }
static inline float inverse(float d) { return d ? 1 / d : 0; }

/* The element of largest magnitude, sign kept; the first of equals. */
static inline float extreme(const float *x, int n) {
    float best = fabsf(x[0]), top = x[0];
    for (int i = 1; i < n; i++)
        if (fabsf(x[i]) > best) best = fabsf(x[i]), top = x[i];
    return top;
}

static inline void range(const float *x, int n, float *lo, float *hi) {
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < *lo) *lo = x[i];
        if (x[i] > *hi) *hi = x[i];
    }
}

#endif
