/* layers.c - the layers of a dense model that streams (store.h, a cycle): a record is held while its ops run.
 *
 * A record may come to lie elsewhere each time, so the matrices of its ops are pointed into it when they are entered; all other
 * weights (norms, biases) stay in memory. What comes next is asked for before the wait, so that it is read while this layer computes.
 */
#include "exec_int.h"

static const int32_t only = 0;                /* each layer has one record */

static void point(mg_exec *e, int32_t first, const uint8_t *at) {
    const int32_t record = e->ops[first].record;
    mg_layer_record *l = &e->layers[record];
    if (l->at == at) return;
    l->at = at;
    for (int32_t i = first; i < e->n_ops && e->ops[i].record == record; i++)
        for (int k = 0; k < e->ops[i].n_mats; k++) {
            mg_mat *m = &e->ops[i].mat[k];
            if (m->file_at >= 0 && !m->gather) m->w = at + (m->file_at - l->offset);
        }
}

int mg_layer_enter(mg_exec *e, int32_t first) {
    const int32_t record = e->ops[first].record, *uses = &e->n_tokens;
    const uint8_t *at = NULL;
    uint8_t state = MG_ABSENT;
    int status = MG_OK;
    mg_layer_leave(e);
    if (record < 0) return MG_OK;
    while (state != MG_READY && status == MG_OK) {
        if (state == MG_ABSENT) mg_store_request(e->store, record, 1, &only, uses, &at, &state);
        uses = NULL;
        mg_store_next(e->store, record);
        if (state != MG_READY) status = mg_store_wait(e->store, record, 1, &only, &at, &state);
    }
    if (status == MG_OK) {
        e->layer_held = record;
        point(e, first, at);
    } else {
        mg_store_release(e->store, record, 1, NULL, &only, &state);
    }
    return status;
}

void mg_layer_leave(mg_exec *e) {
    uint8_t state = MG_READY;
    if (e->layer_held >= 0) mg_store_release(e->store, e->layer_held, 1, NULL, &only, &state);
    e->layer_held = -1;
}
