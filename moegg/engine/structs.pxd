# structs.pxd - what forward.pyx calls of structs.pyx.
from moegg.kernels.exec cimport mg_attn_layer, mg_indexer, mg_mixer_layer, mg_moe_layer, mg_ngram, mg_op, mg_rope

cdef int fill_op(arena, mg_op *m, op, dict weights) except -1
cdef int fill_rope(arena, mg_rope *r, rope, int ctx) except -1
cdef int fill_latent(mg_attn_layer *l, a, int index, dict weights, kv, int ctx, int ubatch) except -1
cdef int fill_attn(mg_attn_layer *l, a, int index, dict weights, kv, int ctx, int ubatch) except -1
cdef int fill_indexer(mg_indexer *x, i, int index, dict weights, kv, int ctx) except -1
cdef int fill_ngram(arena, mg_ngram *g, m, dict weights) except -1
cdef int fill_mixer(arena, mg_mixer_layer *l, m, int index, dict weights, dict buffers) except -1
cdef const float *temperature(arena, tuple table, int ctx) except NULL
cdef int fill_moe(arena, mg_moe_layer *l, m, int index, dict weights, ref) except -1
