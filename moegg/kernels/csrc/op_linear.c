/* op_linear.c - matrix products as lists of jobs (one matrix, n activation rows) and the activation rows they read.
 *
 * The pool claims 16-row groups across all jobs of a phase, so that the experts of a layer cost one barrier per phase (moe.c).
 */
#include "exec_int.h"

size_t mg_job_bytes(void) { return sizeof(mg_job); }

static int64_t groups_of(const mg_mat *m) { return (m->rows + MG_GROUP - 1) / MG_GROUP; }

#define ROWS_PER_CALL 64

static void one_group(const mg_job *j, int64_t g) {
    const mg_mat *m = j->mat;
    const mg_group_fn fn = mg_kernels.group[m->quant];
    const uint8_t *w = j->w + (size_t)g * mg_group_bytes(m->quant, m->cols);
    float *y[ROWS_PER_CALL];
    for (int32_t i0 = 0; i0 < j->n; i0 += ROWS_PER_CALL) {
        const int n = j->n - i0 < ROWS_PER_CALL ? j->n - i0 : ROWS_PER_CALL;
        for (int i = 0; i < n; i++) y[i] = j->dst + (i0 + i) * j->ld + g * MG_GROUP;
        fn(w, m->cols, j->act + i0, n, y);
        if (j->bias) {
            const int64_t left = m->rows - g * MG_GROUP, rows = left < MG_GROUP ? left : MG_GROUP;
            for (int i = 0; i < n; i++)
                for (int64_t r = 0; r < rows; r++) y[i][r] += j->bias[g * MG_GROUP + r];
        }
    }
}

typedef struct { const mg_job *jobs; int n; } job_list;

static void job_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const job_list *l = ctx;
    int lo = 0, hi = l->n - 1;                   /* the job that holds group `begin` */
    (void)worker;
    while (lo < hi) {
        const int mid = (lo + hi + 1) / 2;
        if (l->jobs[mid].first <= begin) lo = mid; else hi = mid - 1;
    }
    for (int64_t g = begin; g < end; g++) {
        while (lo + 1 < l->n && l->jobs[lo + 1].first <= g) lo++;
        one_group(&l->jobs[lo], g - l->jobs[lo].first);
    }
}

/* Chunks of about 32 KiB of weights times rows: small products stay on one thread. */
void mg_jobs_run(mg_exec *e, int n_jobs) {
    int64_t total = 0, cost = 1;
    for (int i = 0; i < n_jobs; i++) {
        mg_job *j = &e->jobs[i];
        const int64_t c = (int64_t)mg_group_bytes(j->mat->quant, j->mat->cols) * (j->n < 4 ? 1 : j->n / 4);
        j->first = (int32_t)total;
        total += groups_of(j->mat);
        cost = c > cost ? c : cost;
    }
    job_list l = {e->jobs, n_jobs};
    mg_pool_run(e->pool, job_task, &l, total, cost >= 32768 ? 1 : 32768 / cost);
}

typedef struct { mg_exec *e; const float *src; int64_t ld, cols; int act; uint8_t *dst; size_t stride; } act_ctx;

static void act_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const act_ctx *a = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) mg_kernels.act[a->act](a->src + i * a->ld, a->cols, a->dst + i * a->stride);
}

const void **mg_act_rows(mg_exec *e, int act, const float *src, int64_t ld, int64_t cols, int64_t n, uint8_t *dst) {
    const void **ptr = e->act_ptr + act * act_rows(e);
    if (act == MG_ACT_F32 && cols % 2 == 0) {
        for (int64_t i = 0; i < n; i++) ptr[i] = src + i * ld;
        return ptr;
    }
    act_ctx a = {e, src, ld, cols, act, dst, mg_act_bytes(act, cols)};
    for (int64_t i = 0; i < n; i++) ptr[i] = a.dst + i * a.stride;
    mg_pool_run(e->pool, act_task, &a, n, cols >= 16384 ? 1 : 16384 / cols);
    return ptr;
}

/* In the order of the rows and on one thread, so that the sums do not depend on how many there are. */
void mg_tally_rows(const mg_mat *m, int64_t which, const float *x, int64_t ld, int64_t n) {
    double *s = m->tally->squares + which * m->cols;
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < m->cols; i++) s[i] += (double)x[t * ld + i] * x[t * ld + i];
    m->tally->rows[which] += n;
}

/* All mats read the same rows. Mats are run by activation format, so that one scratch serves both. */
void mg_linear(mg_exec *e, const mg_mat *mats, float *const *dst, const int64_t *ld, int n_mats, const float *src, int64_t ld_src, int64_t n) {
    for (int i = 0; i < n_mats; i++)
        if (mats[i].tally) mg_tally_rows(&mats[i], 0, src, ld_src, n);
    for (int act = MG_ACT_F32; act <= MG_ACT_A8; act++) {
        int n_jobs = 0;
        const void **ptr = NULL;
        for (int i = 0; i < n_mats; i++) {
            if (act_of(&mats[i]) != act) continue;
            if (!ptr) ptr = mg_act_rows(e, act, src, ld_src, mats[i].cols, n, e->act);
            e->jobs[n_jobs++] = (mg_job){&mats[i], mats[i].w, mats[i].bias, ptr, dst[i], ld[i], (int32_t)n, 0};
        }
        if (n_jobs) mg_jobs_run(e, n_jobs);
    }
}

void mg_op_linear(mg_exec *e, const mg_op *op) {
    float *dst[3];
    int64_t ld[3];
    for (int i = 0; i < op->n_mats; i++) {
        dst[i] = e->buf[op->mat_dst[i]];
        ld[i] = e->ld[op->mat_dst[i]];
    }
    mg_linear(e, op->mat, dst, ld, op->n_mats, e->buf[op->src], e->ld[op->src], e->n_tokens);
}
