/* ops.c - which float kernels and searches are in force. */
#include "mixers.h"
#include "ops.h"
#include "search.h"
#include <string.h>

mg_op_table mg_ops;
mg_mixer_table mg_mixers;
mg_search_table mg_search;

#define USE(level) mg_ops = mg_ops_##level, mg_mixers = mg_mixers_##level, mg_search = mg_search_##level

void mg_ops_select(const char *level) {
    USE(generic);
#if defined(__x86_64__)
    if (!strcmp(level, "avx2") || !strcmp(level, "avxvnni")) USE(avx2);
    if (!strcmp(level, "avx512")) USE(avx512);
#elif defined(__aarch64__)
    if (strcmp(level, "generic")) USE(neon);
#endif
}
