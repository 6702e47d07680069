/* alloc_guard.h - in a debug build (MOEGG_DEBUG=1) every C file includes this first: an allocation during a pass aborts.
 *
 * "No allocation while decoding" is a promise of mg_exec_run; this is how it is kept. Only our own calls are seen, not libc's.
 */
#ifndef MOEGG_ALLOC_GUARD_H
#define MOEGG_ALLOC_GUARD_H
#include <stdio.h>
#include <stdlib.h>

extern int mg_in_pass;                          /* exec.c */

static inline void mg_alloc_check(const char *what, const char *file, int line) {
    if (!mg_in_pass) return;
    fprintf(stderr, "moegg: %s:%d: %s during a forward pass [debug-alloc]\n", file, line, what);
    abort();
}

#define malloc(n) (mg_alloc_check("malloc", __FILE__, __LINE__), malloc(n))
#define calloc(n, s) (mg_alloc_check("calloc", __FILE__, __LINE__), calloc(n, s))
#define realloc(p, n) (mg_alloc_check("realloc", __FILE__, __LINE__), realloc(p, n))
#define free(p) (mg_alloc_check("free", __FILE__, __LINE__), free(p))
#endif
