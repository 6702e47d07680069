# exec.pxd - the executor's structs (csrc/exec.h) for Cython; field comments are in the header. The functions are reached through _core.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from moegg.kernels.store_c cimport mg_store

cdef extern from "exec.h" nogil:
    enum:
        MG_TILE
        MG_SCORES
        MG_QROWS
        MG_CHUNK
        MG_PART_HEAD
        MG_ATTN_ITEMS
        MG_SILU
        MG_GELU_TANH
        MG_SIGMOID
        MG_SWIGLU_OAI
        MG_SILU_CUT
        MG_XIELU
        MG_ACT_VALUES
        MG_NORM_RMS
        MG_NORM_LAYER
        MG_SCORE_SOFTMAX
        MG_SCORE_SIGMOID
        MG_SCORE_SPARSEMIXER
        MG_OP_EMBED
        MG_OP_NORM
        MG_OP_LINEAR
        MG_OP_ROPE_KV
        MG_OP_ATTENTION
        MG_OP_ADD
        MG_OP_GLU
        MG_OP_MOE
        MG_OP_HEAD
        MG_OP_LOOKAHEAD
        MG_OP_CONV
        MG_OP_MATRIX
        MG_OP_SCAN
        MG_OP_REPEAT
        MG_OP_GROUPED_NORM
        MG_OP_SQUASH
        MG_OP_MIX
        MG_OP_INJECT
        MG_OP_NGRAM
        MG_OP_PLE
        MG_OP_INDEX
        MG_OP_CHOOSE
        MG_OP_SPARSE
        MG_NGRAM_MAX
        MG_OP_ACT
        MG_OP_SCALE
        MG_OP_PER_LAYER
        MG_OP_ROUTE
        MG_OP_GATE
        MG_OP_HEADS
        MG_OP_LATENT
        MG_OP_GATE_HEADS
    ctypedef struct mg_pool:
        pass
    ctypedef struct mg_tally:
        pass
    ctypedef struct mg_mat:
        const uint8_t *w
        const float *bias
        int32_t quant, rows, cols, gather
        int64_t file_at
        mg_tally *tally
    ctypedef struct mg_rope:
        int32_t n, half, interleaved
        int64_t limit[2]
        const float *cosine[2]
        const float *sine[2]
    ctypedef struct mg_attn:
        const void *k
        const void *v
        int32_t value_dim, ldv, by_row
        int32_t cap, dim, dim_pad, f32, window, chunk
        float scale, softcap
    int32_t mg_oldest(const mg_attn *a, int32_t p)
    ctypedef struct mg_op_table:
        void (*rmsnorm)(const float *x, const float *w, float eps, int64_t n, float *y)
        void (*layernorm)(const float *x, const float *w, const float *b, float eps, int64_t n, float *y)
        void (*rope)(float *x, const float *cosine, const float *sine, int64_t half, int interleaved)
        void (*attention)(const mg_attn *a, int n, const float *const *q, const int32_t *pos, int32_t begin, float *const *part, float *scratch)
        void (*attention_fold)(float *into, const float *part, int64_t dim_pad)
        void (*attention_finish)(const float *part, int64_t dim, float sink, float *out)
        void (*glu)(int act, const float *g, const float *u, int64_t n, float *h)
        void (*act)(int act, const float *values, const float *x, int64_t n, float *h)
        float (*dot)(const float *x, const float *y, int64_t n)
        void (*softcap)(float *x, float cap, int64_t n)
        void (*softmax)(float *x, int64_t n)
        float (*kth)(const float *x, int64_t n, int k, float *heap)
    ctypedef struct mg_norm:
        const float *w
        const float *b
        float eps
        int32_t kind
    ctypedef struct mg_attn_layer:
        int32_t n_head, n_kv, kv_index, q_wide, k_wide, norm_last, k_is_v, shared
        mg_attn shape
        mg_norm q_norm, k_norm, v_norm
        const mg_rope *rope
        const float *q_scale
        const float *sinks
        int32_t nope, rope_dim
    ctypedef struct mg_moe_layer:
        int32_t layer, index, n_expert, top_k, width, act, renormalise, score, n_group, top_group, group_sum, weigh_input, adds
        float scale, sum_eps, sum_min, jitter
        const float *select_bias
        const float *expert_scale
        mg_mat router
        mg_mat part[3]
        int64_t part_offset[3]
        int64_t bias_offset[3]
        const uint8_t *base
        int64_t stride
        const int32_t *slot
    ctypedef struct mg_conv:
        const float *w
        const float *bias
        int32_t channels, taps, dilation, silu, buf
        int64_t at
    ctypedef struct mg_mixer_layer:
        int32_t index, n_conv
        int64_t floats
        mg_conv conv[3]
        int32_t pre, post
        int32_t n_head, n_key_head, dk, dv, per_key, delta, bounded, gate_silu, whole_norm, tiled
        int32_t q, k, v, decay_buf, beta_buf, gate_buf
        float q_scale, bound, eps
        const float *decay_bias
        const float *decay_rate
        const float *fixed_decay
        const float *norm
        int64_t matrix_at
        const float *a_log
        const float *d
        int32_t states, b, c, dt
    ctypedef struct mg_indexer:
        int32_t index, n_head, dim, budget, ratio, weighed, f32
        mg_norm q_norm, k_norm
        float scale
        const mg_rope *rope
        int64_t max_blocks
    ctypedef struct mg_ngram:
        int32_t size, heads, quant, eos
        int64_t dim, shard_rows
        uint64_t multiplier[8]
        const int64_t *modulus
        const int64_t *offset
        const uint8_t *const *shard
        mg_norm norm_key, norm_query, norm_conv
    ctypedef struct mg_op:
        int32_t kind, layer, record, src, src2, src3, dst, n_mats
        int32_t mat_dst[3]
        mg_mat mat[3]
        int32_t n, act, at
        mg_norm norm
        int32_t heads, head_src, head_dst
        float scale, softcap, keep
        int32_t streams
        const mg_attn_layer *attn
        const mg_moe_layer *moe
        const mg_mixer_layer *mixer
        const mg_indexer *indexer
        const mg_ngram *ngram
    ctypedef struct mg_index:
        float *raw
        void *blocks
    ctypedef struct mg_kv:
        void *k
        void *v
    struct mg_job:
        pass
    ctypedef struct mg_layer_record:
        int64_t offset
        const uint8_t *at
    ctypedef struct mg_exec:
        mg_pool *pool
        mg_op *ops
        int32_t n_ops, max_tokens, max_out, max_pairs, max_experts
        float **buf
        int64_t *ld
        uint8_t *act
        uint8_t *pair_act
        const void **act_ptr
        float *attn_scratch
        int64_t attn_scratch_floats
        float *attn_parts
        int32_t max_split_rows
        float *sparse_scratch
        int64_t sparse_floats
        int32_t *seen
        int64_t seen_ld
        uint8_t *gathered
        float *sparse_parts
        int32_t *blocks
        mg_job *jobs
        float *pair_gate
        float *pair_up
        float *pair_out
        int32_t *pair_token
        int32_t *pair_of
        int32_t *batch_pair
        float *pair_w
        int32_t *expert_ids
        int32_t *expert_first
        int32_t *expert_uses
        int32_t *batch
        uint8_t *expert_state
        const uint8_t **records
        float *route_logits
        float *route_choice
        int32_t *route_idx
        float *route_w
        mg_store *store
        mg_layer_record *layers
        int32_t layer_held
        int32_t lookahead
        int32_t n_tokens, n_out
        const int32_t *token
        const int32_t *pos
        const int32_t *seq
        const mg_kv *const *kv
        const mg_index *const *index
        const int32_t *const *history
        float *const *const *state
        const int32_t *mark_at
        const int32_t *mark_slot
        const int64_t *seq_len
        const int32_t *out_row
        float *logits
        int64_t ld_logits
        int32_t *capture_idx
        float *capture_w
        const int32_t *cancel
        int64_t *op_ns
