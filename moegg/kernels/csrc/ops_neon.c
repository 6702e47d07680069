/* ops_neon.c - the float kernels of ops_body.h and mixers_body.h and the searches of search_body.h at level neon. */
#if defined(__aarch64__)
#define VF_NEON
#include "ops_body.h"
#include "mixers_body.h"
#include "search_body.h"
MG_OP_TABLE(mg_ops_neon);
MG_MIXER_TABLE(mg_mixers_neon);
MG_SEARCH_TABLE(mg_search_neon);
#endif
