/* ops_avx512.c - the float kernels of ops_body.h and mixers_body.h and the searches of search_body.h at level avx512. */
#if defined(__x86_64__)
#define VF_AVX512
#include "ops_body.h"
#include "mixers_body.h"
#include "search_body.h"
MG_OP_TABLE(mg_ops_avx512);
MG_MIXER_TABLE(mg_mixers_avx512);
MG_SEARCH_TABLE(mg_search_avx512);
#endif
