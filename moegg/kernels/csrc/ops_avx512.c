/* ops_avx512.c - the float kernels of ops_body.h at level avx512. */
#if defined(__x86_64__)
#define VF_AVX512
#include "ops_body.h"
MG_OP_TABLE(mg_ops_avx512);
#endif
