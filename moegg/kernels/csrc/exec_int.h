/* exec_int.h - what the op files share: the op functions, products as lists of jobs, activation rows, tasks per token. */
#ifndef MOEGG_EXEC_INT_H
#define MOEGG_EXEC_INT_H
#include "exec.h"

typedef struct mg_job {
    const mg_mat *mat;
    const uint8_t *w;
    const float *bias;       /* NULL: none */
    const void *const *act;  /* [n] */
    float *dst;              /* [n, ld] */
    int64_t ld;
    int32_t n, first;        /* first: groups of all earlier jobs */
} mg_job;

static inline int64_t pad16(int64_t n) { return (n + 15) & ~(int64_t)15; }
static inline int act_of(const mg_mat *m) { return mg_quant_get(m->quant)->act; }
static inline float *row(const mg_exec *e, int buf, int64_t i) { return e->buf[buf] + i * e->ld[buf]; }
static inline int64_t act_rows(const mg_exec *e) { return e->max_pairs > e->max_tokens ? e->max_pairs : e->max_tokens; }

/* e->jobs[n_jobs], 16-row groups claimed across all of them. */
void mg_jobs_run(mg_exec *e, int n_jobs);
/* e->act_ptr[act][0..n) = the rows of src in activation format `act`, made in `dst`. An even float row serves as it is. */
const void **mg_act_rows(mg_exec *e, int act, const float *src, int64_t ld, int64_t cols, int64_t n, uint8_t *dst);
/* Adds n inputs to the tally of a matrix, or of expert `which`. */
void mg_tally_rows(const mg_mat *m, int64_t which, const float *x, int64_t ld, int64_t n);
/* All mats read the same rows. */
void mg_linear(mg_exec *e, const mg_mat *mats, float *const *dst, const int64_t *ld, int n_mats, const float *src, int64_t ld_src,
               int64_t n);

/* fn over the tokens of the pass, ctx = op_ctx; serial up to about 16 K floats, then chunks of that size. */
typedef struct { mg_exec *e; const mg_op *op; } op_ctx;
void mg_per_token(mg_exec *e, const mg_op *op, mg_task_fn fn, int64_t floats);

/* y = norm(x), n floats; y may be x; nothing happens for MG_NORM_NONE. */
static inline void mg_norm_row(const mg_norm *m, const float *x, int64_t n, float *y) {
    if (m->kind == MG_NORM_RMS) mg_ops.rmsnorm(x, m->w, m->eps, n, y);
    else if (m->kind == MG_NORM_LAYER) mg_ops.layernorm(x, m->w, m->b, m->eps, n, y);
}

/* Lets go of the record that is held and brings in that of op `first`, for it and its neighbours. MG_OK, MG_E_CANCEL, MG_E_FETCH. */
int mg_layer_enter(mg_exec *e, int32_t first);
void mg_layer_leave(mg_exec *e);

int mg_op_embed(mg_exec *e, const mg_op *op);            /* MG_OK, MG_E_FETCH */
void mg_op_norm(mg_exec *e, const mg_op *op);
void mg_op_linear(mg_exec *e, const mg_op *op);
void mg_op_rope_kv(mg_exec *e, const mg_op *op);
void mg_op_attention(mg_exec *e, const mg_op *op);
void mg_op_add(mg_exec *e, const mg_op *op);
void mg_op_glu(mg_exec *e, const mg_op *op);
void mg_op_act(mg_exec *e, const mg_op *op);
void mg_op_scale(mg_exec *e, const mg_op *op);
void mg_op_per_layer(mg_exec *e, const mg_op *op);
void mg_op_head(mg_exec *e, const mg_op *op);
void mg_op_heads(mg_exec *e, const mg_op *op);           /* op_latent.c */
void mg_op_latent(mg_exec *e, const mg_op *op);
void mg_op_gate_heads(mg_exec *e, const mg_op *op);
/* The tables of a position of a session, NULL without rope. */
void mg_rope_row(const mg_exec *e, const mg_rope *rope, int64_t seq, int64_t pos, const float **cosine, const float **sine);
void mg_op_gate(mg_exec *e, const mg_op *op);
void mg_op_route(mg_exec *e, const mg_op *op);
int mg_op_moe(mg_exec *e, const mg_op *op);              /* MG_OK, MG_E_CANCEL, MG_E_FETCH */
void mg_moe_drop(mg_exec *e);                            /* the pass ends early */
void mg_op_lookahead(mg_exec *e, const mg_op *op);
void mg_op_conv(mg_exec *e, const mg_op *op);            /* mixers.c */
void mg_op_matrix(mg_exec *e, const mg_op *op);
void mg_op_scan(mg_exec *e, const mg_op *op);
void mg_op_streams(mg_exec *e, const mg_op *op);         /* REPEAT to PLE */
void mg_op_index(mg_exec *e, const mg_op *op);           /* op_index.c */
void mg_op_choose(mg_exec *e, const mg_op *op);
void mg_op_sparse(mg_exec *e, const mg_op *op);
/* route_idx and route_w of the rows of a buffer. */
void mg_route(mg_exec *e, const mg_moe_layer *l, int buf);

#endif
