/* measure.h - what the machine can do: read bandwidth, int8 and float rates, the denominators of benchmarks. Callers take the time. */
#ifndef MOEGG_MEASURE_H
#define MOEGG_MEASURE_H
#include "kernels.h"

/* XOR of all 8-byte words of `data`, each read once; nbytes a multiple of 64. ahead: bytes of software prefetch, 0 = none. */
uint64_t mg_measure_read(mg_pool *p, const void *data, int64_t nbytes, int64_t ahead);
/* `items` pieces of int8 dot products from registers, with the instruction of the level in force, over the pool.
 * Returns operations done; a multiply and its add are two. */
int64_t mg_measure_int8(mg_pool *p, int64_t items);
/* The same of float multiply-adds. */
int64_t mg_measure_fma(mg_pool *p, int64_t items);

#endif
