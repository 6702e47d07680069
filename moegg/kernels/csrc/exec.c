/* exec.c - the executor: walks the op list, one function per kind (op_*.c, moe.c), allocates nothing. */
#include "clock.h"
#include "exec_int.h"

static int run_op(mg_exec *e, const mg_op *op) {
    int status = MG_OK;
    switch (op->kind) {
    case MG_OP_EMBED: status = mg_op_embed(e, op); break;
    case MG_OP_NORM: mg_op_norm(e, op); break;
    case MG_OP_LINEAR: mg_op_linear(e, op); break;
    case MG_OP_ROPE_KV: mg_op_rope_kv(e, op); break;
    case MG_OP_ATTENTION: mg_op_attention(e, op); break;
    case MG_OP_ADD: mg_op_add(e, op); break;
    case MG_OP_GLU: mg_op_glu(e, op); break;
    case MG_OP_ACT: mg_op_act(e, op); break;
    case MG_OP_SCALE: mg_op_scale(e, op); break;
    case MG_OP_PER_LAYER: mg_op_per_layer(e, op); break;
    case MG_OP_HEADS: mg_op_heads(e, op); break;
    case MG_OP_LATENT: mg_op_latent(e, op); break;
    case MG_OP_GATE_HEADS: mg_op_gate_heads(e, op); break;
    case MG_OP_GATE: mg_op_gate(e, op); break;
    case MG_OP_ROUTE: mg_op_route(e, op); break;
    case MG_OP_MOE: status = mg_op_moe(e, op); break;
    case MG_OP_HEAD: mg_op_head(e, op); break;
    case MG_OP_CONV: mg_op_conv(e, op); break;
    case MG_OP_MATRIX: mg_op_matrix(e, op); break;
    case MG_OP_SCAN: mg_op_scan(e, op); break;
    case MG_OP_INDEX: mg_op_index(e, op); break;
    case MG_OP_CHOOSE: mg_op_choose(e, op); break;
    case MG_OP_SPARSE: mg_op_sparse(e, op); break;
    case MG_OP_REPEAT: case MG_OP_GROUPED_NORM: case MG_OP_SQUASH: case MG_OP_MIX: case MG_OP_INJECT: case MG_OP_NGRAM: case MG_OP_PLE:
        mg_op_streams(e, op);
        break;
    case MG_OP_LOOKAHEAD:
        if (!e->store || !e->lookahead) break;
        mg_op_norm(e, op);
        mg_op_lookahead(e, op);
        break;
    }
    return status;
}

static int run_ops(mg_exec *e, int32_t first, int32_t end) {
    int64_t last = e->op_ns ? mg_now_ns() : 0;
    for (int32_t i = first; i < end; i++) {
        const mg_op *op = &e->ops[i];
        int status = e->cancel && *e->cancel ? MG_E_CANCEL : MG_OK;
        if (status == MG_OK && op->record != e->layer_held) status = mg_layer_enter(e, i);
        if (status == MG_OK) status = run_op(e, op);
        if (status != MG_OK) {
            mg_moe_drop(e);
            return status;
        }
        if (e->op_ns) {
            const int64_t now = mg_now_ns();
            e->op_ns[i] += now - last;
            last = now;
        }
    }
    return MG_OK;
}

#if defined(MOEGG_DEBUG)
int mg_in_pass;                                 /* alloc_guard.h */
#endif

static int guarded_ops(mg_exec *e, int32_t first, int32_t end) {
#if defined(MOEGG_DEBUG)
    mg_in_pass = 1;
#endif
    const int status = run_ops(e, first, end);
    mg_layer_leave(e);
#if defined(MOEGG_DEBUG)
    mg_in_pass = 0;
#endif
    return status;
}

int mg_exec_begin(mg_exec *e, int32_t n_tokens) { return e->store ? mg_store_pass(e->store, n_tokens) : MG_OK; }

int mg_exec_check(mg_exec *e) { return e->store ? mg_store_check(e->store) : MG_OK; }

int mg_exec_run(mg_exec *e) {
    int status = mg_exec_begin(e, e->n_tokens);
    if (status == MG_OK) status = guarded_ops(e, 0, e->n_ops);
    return status == MG_OK ? mg_exec_check(e) : status;
}

int32_t mg_exec_span(const mg_exec *e, int32_t first) {
    int32_t end = first + 1;
    while (end < e->n_ops && e->ops[end].layer == e->ops[first].layer) end++;
    return end;
}

int mg_exec_part(mg_exec *e, int32_t first, int32_t end, float *residual, int more) {
    float *own = e->buf[0];
    e->buf[0] = residual;
    if (e->store) mg_store_more(e->store, more);
    const int status = guarded_ops(e, first, end);
    e->buf[0] = own;
    return status;
}
