/* ops_generic.c - the float kernels of ops_body.h at level generic. */
#include "ops_body.h"
MG_OP_TABLE(mg_ops_generic);
