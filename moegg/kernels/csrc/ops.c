/* ops.c - which float kernels are in force. */
#include "mixers.h"
#include "ops.h"
#include <string.h>

mg_op_table mg_ops;
mg_mixer_table mg_mixers;

void mg_ops_select(const char *level) {
    mg_ops = mg_ops_generic;
    mg_mixers = mg_mixers_generic;
#if defined(__x86_64__)
    if (!strcmp(level, "avx2") || !strcmp(level, "avxvnni")) { mg_ops = mg_ops_avx2; mg_mixers = mg_mixers_avx2; }
    if (!strcmp(level, "avx512")) { mg_ops = mg_ops_avx512; mg_mixers = mg_mixers_avx512; }
#elif defined(__aarch64__)
    if (strcmp(level, "generic")) { mg_ops = mg_ops_neon; mg_mixers = mg_mixers_neon; }
#endif
}
