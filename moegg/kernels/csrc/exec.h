/* exec.h - one forward pass: a flat list of ops over float buffers, run for T tokens of one or more sessions.
 *
 * Everything is allocated by the owner (moegg/engine/forward.pyx) before the first pass; mg_exec_run allocates nothing.
 * Buffers are [S, ld] floats with ld a multiple of 16; token i of the pass is row i.
 */
#ifndef MOEGG_EXEC_H
#define MOEGG_EXEC_H
#include "kernels.h"
#include "mixers.h"
#include "ops.h"
#include "store.h"

/* What calibration keeps of the inputs of a matrix, or of the n matrices of n experts. */
typedef struct {
    double *squares;         /* [n, cols] sums of x^2 */
    int64_t *rows;           /* [n] inputs seen */
} mg_tally;

typedef struct {
    const uint8_t *w;        /* interleaved, or row-major when `gather` is set */
    const float *bias;       /* NULL: none */
    int32_t quant, rows, cols, gather;
    int64_t file_at;         /* where a gathered table or a streamed matrix lies in the store's file, -1: it lies in memory */
    mg_tally *tally;         /* NULL: nobody calibrates */
} mg_mat;

/* Rotary tables of one Rope: regime r serves sequences of at most limit[r] tokens; cosine[r], sine[r]: [ctx, half]. */
typedef struct {
    int32_t n, half, interleaved;
    int64_t limit[2];
    const float *cosine[2], *sine[2];
} mg_rope;

enum { MG_NORM_NONE, MG_NORM_RMS, MG_NORM_LAYER };

typedef struct {
    const float *w, *b;                         /* NULL: 1, 0 */
    float eps;
    int32_t kind;
} mg_norm;

typedef struct {
    int32_t n_head, n_kv, kv_index;             /* kv_index: which of a session's KV entries */
    int32_t q_wide, k_wide;                     /* the norm is over all heads at once, not over each */
    int32_t norm_last;                          /* norms of q and k come after rope */
    int32_t k_is_v, shared;                     /* values are keys before their norm; keys and values are another layer's */
    mg_attn shape;                              /* k and v are filled per session and head */
    mg_norm q_norm, k_norm, v_norm;
    const mg_rope *rope;                        /* NULL: no rotation */
    const float *q_scale;                       /* NULL, or [ctx] factors on q by position */
    const float *sinks;                         /* NULL, or [n_head] */
    int32_t nope, rope_dim;                     /* LATENT: parts of a query; k_norm is that of c */
} mg_attn_layer;

enum { MG_SCORE_SOFTMAX, MG_SCORE_SIGMOID, MG_SCORE_SPARSEMIXER };
#define MG_MAX_GROUPS 64

/* arch/moe.py tells what the numbers mean. */
typedef struct {
    int32_t layer, index;                       /* decoder layer; which MoE layer (for router capture) */
    int32_t n_expert, top_k, width, act, renormalise;
    int32_t score, n_group, top_group, group_sum;       /* group_sum: a group counts as its two best experts, else as its best */
    int32_t weigh_input;                        /* weights multiply what experts read, else what they give */
    int32_t adds;                               /* experts are added to what dst holds */
    float scale, sum_eps, sum_min, jitter;
    const float *select_bias, *expert_scale;    /* NULL: none; [n_expert] */
    mg_mat router;
    mg_mat part[3];                             /* gate, up, down; w is unset, rows and cols as usual */
    int64_t part_offset[3];                     /* in a record */
    int64_t bias_offset[3];                     /* of their biases, 0: none */
    const uint8_t *base;                        /* slot 0 */
    int64_t stride;
    const int32_t *slot;                        /* expert id -> slot */
} mg_moe_layer;

/* Scores blocks of keys for sparse attention; keeps raw keys [ctx][dim], unless ratio is 1, and those of complete blocks
 * [blocks / 16][dim][16]. */
typedef struct {
    int32_t index, n_head, dim, budget, ratio;  /* index: which of a session's index entries */
    int32_t weighed, f32;                       /* heads count as src3 says; what complete blocks are kept in */
    mg_norm q_norm, k_norm;
    float scale;
    const mg_rope *rope;
    int64_t max_blocks;
} mg_indexer;

#define MG_NGRAM_MAX 8

/* Rows of a table, in shards of shard_rows rows, by hashes of up to `size` tokens; `heads` rows per length from 2 on. */
typedef struct {
    int32_t size, heads, quant, eos;
    int64_t dim, shard_rows;
    uint64_t multiplier[MG_NGRAM_MAX];
    const int64_t *modulus, *offset;            /* [(size - 1) * heads] */
    const uint8_t *const *shard;
    mg_norm norm_key, norm_query, norm_conv;    /* of MG_OP_PLE */
} mg_ngram;

enum { MG_OP_EMBED, MG_OP_NORM, MG_OP_LINEAR, MG_OP_ROPE_KV, MG_OP_ATTENTION, MG_OP_ADD, MG_OP_GLU, MG_OP_ROUTE, MG_OP_MOE, MG_OP_HEAD,
       MG_OP_LOOKAHEAD, MG_OP_ACT, MG_OP_CONV, MG_OP_MATRIX, MG_OP_SCAN, MG_OP_GATE, MG_OP_SCALE, MG_OP_PER_LAYER,
       MG_OP_REPEAT, MG_OP_GROUPED_NORM, MG_OP_SQUASH, MG_OP_MIX, MG_OP_INJECT, MG_OP_NGRAM, MG_OP_PLE, MG_OP_INDEX, MG_OP_CHOOSE, MG_OP_SPARSE,
       MG_OP_HEADS, MG_OP_LATENT, MG_OP_GATE_HEADS };

typedef struct {
    int32_t kind, layer, record;                /* record: of exec's, that holds this op's matrices; -1: they stay in memory */
    int32_t src, src2, src3, dst;               /* buffer ids */
    int32_t n_mats, mat_dst[3];
    mg_mat mat[3];
    int32_t n, act, at;                         /* width of norms and adds; activation of GLU and ACT; GLU: where in a row src2 begins */
    mg_norm norm;                               /* of NORM, HEAD, PER_LAYER; ADD: the post norm; GATE: w [n]; SCALE: w [1]; ACT: w [MG_ACT_VALUES] */
    int32_t heads, head_src, head_dst;          /* HEADS: how many, and the distance of two in src and dst */
    float scale, softcap;                       /* EMBED, NORM, ADD, HEAD, PER_LAYER: scale; HEAD: softcap, 0 = none */
    float keep;                                 /* ADD: factor on what is there */
    int32_t streams;                            /* n floats each, side by side; GATE_HEADS: heads */
    const mg_attn_layer *attn;
    const mg_moe_layer *moe;
    const mg_mixer_layer *mixer;
    const mg_indexer *indexer;
    const mg_ngram *ngram;
} mg_op;

/* The matrices of one layer of a dense model that streams; its ops are neighbours. */
typedef struct {
    int64_t offset;                             /* in the store's file */
    const uint8_t *at;                          /* where its matrices point to now */
} mg_layer_record;

#define MG_ATTN_ITEMS 16     /* attention items that share one walk over the keys */

typedef struct { void *k, *v; } mg_kv;          /* one session, one attention layer */
typedef struct { float *raw; void *blocks; } mg_index;

typedef struct {
    /* set up once */
    mg_pool *pool;
    mg_op *ops;
    int32_t n_ops, max_tokens, max_out, max_pairs, max_experts;
    float **buf;
    int64_t *ld;
    uint8_t *act;            /* activation rows of the current product: max_tokens rows */
    uint8_t *pair_act;       /* activation rows of gate * up: max_pairs rows */
    const void **act_ptr;    /* [5][max(max_tokens, max_pairs)]: token rows per format, pair rows per format, gate * up */
    float *attn_scratch;     /* one per worker: scores, then MG_QROWS and MG_ATTN_ITEMS * MG_QROWS partial results */
    int64_t attn_scratch_floats;
    float *attn_parts;       /* [max_split_rows, chunks of the longest context] partial results of a split context */
    int32_t max_split_rows;
    float *sparse_scratch;   /* one per worker: block scores */
    int64_t sparse_floats;
    int32_t *seen;           /* [max_tokens][seen_ld] of MG_OP_CHOOSE: how many positions a row sees, then these, ascending */
    int64_t seen_ld;
    uint8_t *gathered;       /* latent rows that one row sees; or one per worker: keys and values of a chunk */
    float *sparse_parts;     /* [heads][chunks] partial results of one row */
    int32_t *blocks;         /* [max_tokens + 1] attention blocks */
    struct mg_job *jobs;     /* [2 * max_experts + 4] */
    float *pair_gate, *pair_up, *pair_out;      /* [max_pairs, pad16(width)] x 2, [max_pairs, ld of the residual] */
    int32_t *pair_token, *pair_of, *batch_pair; /* [max_pairs] x 3 */
    float *pair_w;           /* [max_pairs] */
    int32_t *expert_ids, *expert_first;         /* [max_experts], [max_experts + 1] */
    int32_t *expert_uses, *batch;               /* [max_experts] x 2 */
    uint8_t *expert_state;                      /* [max_experts] of mg_store_request */
    int32_t n_chosen;                           /* experts of the layer that was routed last */
    const mg_moe_layer *held;                   /* NULL, or that layer, while the store holds records for it */
    const uint8_t **records; /* [max_experts] */
    float *route_logits, *route_choice;         /* [max_tokens, pad16(max_experts)] x 2 */
    int32_t *route_idx;      /* [max_tokens, top_k] */
    float *route_w;
    mg_store *store;         /* NULL: all experts lie in memory, at base + slot * stride */
    mg_layer_record *layers; /* layers of a dense model that streams: record i is the store's layer i */
    int32_t layer_held;      /* the record that ops may read, -1: none */
    int32_t lookahead;       /* ranks per token that MG_OP_LOOKAHEAD guesses, at most top_k; 0: none */
    /* per pass */
    int32_t n_tokens, n_out;
    const int32_t *token, *pos, *seq;           /* [n_tokens]; seq: index into kv */
    const mg_kv *const *kv;                     /* [seq][kv_index] */
    const mg_index *const *index;               /* [seq][mg_indexer.index] */
    const int32_t *const *history;              /* [seq] token ids by position, this pass included */
    float *const *const *state;                 /* [seq][mg_mixer_layer.index]: the live state, then its marks */
    const int32_t *mark_at, *mark_slot;         /* [seq] before which position the states are copied, to which mark; -1: not */
    const int64_t *seq_len;                     /* [seq] length of the whole sequence being evaluated: picks the rope regime */
    const int32_t *out_row;                     /* [n_out] rows that need logits */
    float *logits;                              /* [n_out, ld_logits] */
    int64_t ld_logits;
    int32_t *capture_idx;                       /* NULL, or [n_moe][n_tokens][top_k] router choices and weights */
    float *capture_w;
    volatile const int32_t *cancel;             /* NULL, or non-zero: stop before the next op */
    int64_t *op_ns;                             /* NULL, or [n_ops]: nanoseconds that each op took are added */
} mg_exec;

size_t mg_job_bytes(void);
int mg_exec_run(mg_exec *e);                    /* MG_OK, MG_E_CANCEL, MG_E_FETCH */

/* A long prompt in several groups of at most max_tokens, layer by layer, so that each expert is brought in once for all of them.
 * begin with the tokens of all groups; then for each span, for each group: set its per-pass fields and run the span, with `more`
 * set but for the last group; check at the end. Groups share all buffers but 0, of which each has its own (`residual`). */
int mg_exec_begin(mg_exec *e, int32_t n_tokens);
int32_t mg_exec_span(const mg_exec *e, int32_t first);                  /* one past the last op of the layer of op `first` */
int mg_exec_part(mg_exec *e, int32_t first, int32_t end, float *residual, int more);
int mg_exec_check(mg_exec *e);

#endif
