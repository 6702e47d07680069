/* store.c - what the owner of the expert store calls (store.h): passes, requests, guesses, loads, budget, counters. */
#include "clock.h"
#include "store_int.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCAN_WINDOW ((int64_t)64 << 20)
#define ROWS_KEPT ((int64_t)16 << 20)
#define DOUBT_FAULTS 32                       /* major faults in a pass: somebody takes our pages */

/* Bytes that a scan holds ahead of the computation. */
static int64_t window(const mg_store *s) {
    return least(most(SCAN_WINDOW, s->minimum), most(mg_policy_budget(s->policy) / 2, s->minimum / 2));
}

const uint8_t *mg_store_map(const mg_store *s) { return mg_file_map(s->file); }

/* The records that the policy has just evicted. */
static void evicted(mg_store *s, int32_t n) {
    const int32_t *ids = mg_policy_evicted(s->policy);
    for (int32_t i = 0; i < n; i++) {
        if (s->items[ids[i]].guess) s->n.wasted += s->layers[mg_policy_layer(s->policy, ids[i])].record_bytes;
        mg_st_lost(s, ids[i]);
        if (!s->slots) mg_st_append(s, DROP, ids[i]);
    }
    s->n.evictions += n;
    if (n && !s->slots) mg_st_wake(s, n);
}

/* layer -1: all of them; guesses only, or the warm-up too. Returns how many went. */
static int cancel_background(mg_store *s, int32_t layer, int guesses_only) {
    int n = 0;
    for (int32_t id = s->q[BACK].head, next; id >= 0; id = next) {
        next = s->items[id].next;
        const int meant = layer < 0 || mg_policy_layer(s->policy, id) == layer;
        if (meant && (s->items[id].guess || !guesses_only)) n += mg_st_cancel(s, id);
    }
    return n;
}

/* --- passes -------------------------------------------------------------------------------------------------------------- */

int mg_store_check(mg_store *s) {
    if (!mg_file_lost(s->file)) return MG_OK;
    pthread_mutex_lock(&s->lock);
    s->error = (mg_io_error){MG_IO_CHANGED, 0, -1, -1, 0, 0};
    pthread_mutex_unlock(&s->lock);
    return MG_E_FETCH;
}

int mg_store_pass(mg_store *s, int32_t n_tokens) {
    if (s->pid != getpid()) {
        s->error = (mg_io_error){MG_IO_FORKED, 0, -1, -1, 0, 0};
        return MG_E_FETCH;
    }
    const int changed = mg_file_changed(s->file) || mg_file_lost(s->file);
    pthread_mutex_lock(&s->lock);
    s->error = (mg_io_error){changed ? MG_IO_CHANGED : MG_IO_OK, 0, -1, -1, 0, 0};
    if (!s->slots) {
        const int64_t faults = mg_st_faults(s);
        s->doubt = faults - s->faults_seen > DOUBT_FAULTS;
        s->faults_seen = faults;
    }
    s->more = 0;
    s->scan = s->n_layers && !s->keep && (int64_t)n_tokens * s->layers[0].top_k >= s->layers[0].n;
    cancel_background(s, -1, 1);
    mg_policy_pass(s->policy, n_tokens, s->scan);
    s->n.tokens += n_tokens;
    pthread_mutex_unlock(&s->lock);
    return changed ? MG_E_FETCH : MG_OK;
}

void mg_store_more(mg_store *s, int more) { s->more = more; }

/* A record that is present, or on its way. */
static void accept(mg_store *s, int32_t id, int ready, const uint8_t **record, uint8_t *state) {
    item *it = &s->items[id];
    mg_st_no_guess(s, id);
    mg_policy_pin(s->policy, id);
    *state = ready ? MG_READY : MG_LOADING;
    if (ready) {
        *record = memory_of(s, id);
        return;
    }
    it->joined = 1;                              /* mg_st_begin clears it for a read of this request's own */
    if (it->queue == BACK) {                     /* the guess has come true before it was read */
        mg_st_take_off(s, id);
        mg_st_append(s, DEMAND, id);
    }
    if (!it->miss) s->outstanding += size_of(s, id);
    it->miss = 1;
}

static int make_room(mg_store *s, int32_t id) {
    for (;;) {
        const int32_t n = mg_policy_admit(s->policy, id, MG_ADMIT_DEMAND);
        if (n >= 0) {
            evicted(s, n);
            return 1;
        }
        if (!cancel_background(s, -1, 0)) return 0;
    }
}

int mg_store_request(mg_store *s, int32_t layer, int32_t n, const int32_t *experts, const int32_t *uses, const uint8_t **records,
                     uint8_t *state) {
    int32_t absent = 0, taken = 0, parts = 0, *order = s->scratch;
    const int32_t first = mg_policy_id(s->policy, layer, 0);
    const int64_t size = s->size[layer];
    pthread_mutex_lock(&s->lock);
    if (uses && !s->more) mg_policy_arrive(s->policy, layer);
    for (int32_t i = 0; i < n; i++) {
        if (state[i] != MG_ABSENT) continue;
        const int32_t id = mg_policy_id(s->policy, layer, experts[i]);
        int here = mg_policy_state(s->policy, id);
        if (here == MG_READY && s->doubt && !mg_file_cached(s->file, s->items[id].offset, s->layers[layer].record_bytes)) {
            mg_policy_again(s->policy, id);
            mg_st_begin(s, id, DEMAND, 1);
            here = MG_LOADING;
        }
        if (uses) (*(here == MG_READY ? &s->n.hits : &s->n.misses))++;
        if (here != MG_ABSENT) accept(s, id, here == MG_READY, &records[i], &state[i]);
        if (uses) {
            mg_policy_use(s->policy, id, uses[i], s->more);
            s->items[id].uses += uses[i];
        }
        if (here != MG_ABSENT) continue;
        int32_t at = absent++;                   /* file order; ids come in it nearly always */
        for (; at > 0 && s->items[first + experts[order[at - 1]]].offset > s->items[id].offset; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    if (uses && !s->more) cancel_background(s, layer, 1);
    while (taken < absent && !(s->scan && s->outstanding && s->outstanding + size > window(s))) {
        const int32_t i = order[taken], id = mg_policy_id(s->policy, layer, experts[i]);
        if (!make_room(s, id)) break;
        accept(s, id, 0, &records[i], &state[i]);
        taken++;
    }
    for (int32_t k = 0; k < taken; k++)          /* few records: more reads of each, so that all threads have one */
        mg_st_begin(s, mg_policy_id(s->policy, layer, experts[order[k]]), DEMAND, (s->n_threads + taken - 1) / taken);
    for (int32_t id = s->q[DEMAND].head; id >= 0 && parts < s->n_threads; id = s->items[id].next)
        parts += s->items[id].parts - s->items[id].taken;
    mg_st_wake(s, parts);
    pthread_mutex_unlock(&s->lock);
    return absent - taken;
}

static void let_go(mg_store *s, int32_t id) {
    item *it = &s->items[id];
    if (it->miss) s->outstanding -= size_of(s, id);
    it->miss = 0;
    mg_policy_unpin(s->policy, id);
}

/* 1: something is ready, or must be asked for again; 0: nothing yet; MG_E_FETCH: a record failed. loading: records on their way.
 * A read that had begun before this request may fail for a reason that has passed: it is worth a request of its own. */
static int look(mg_store *s, int32_t layer, int32_t n, const int32_t *experts, const uint8_t **records, uint8_t *state,
                int *loading) {
    int ready = 0;
    *loading = 0;
    for (int32_t i = 0; i < n; i++) {
        if (state[i] != MG_LOADING) continue;
        const int32_t id = mg_policy_id(s->policy, layer, experts[i]);
        switch (mg_policy_state(s->policy, id)) {
        case MG_LOADING:
            ++*loading;
            break;
        case MG_READY:
            state[i] = MG_READY;
            records[i] = memory_of(s, id);
            ready = 1;
            break;
        default:
            if (!s->items[id].joined) return MG_E_FETCH;
            let_go(s, id);
            state[i] = MG_ABSENT;
            ready = 1;
        }
    }
    return ready;
}

int mg_store_wait(mg_store *s, int32_t layer, int32_t n, const int32_t *experts, const uint8_t **records, uint8_t *state) {
    int loading, found, status = MG_OK;
    int64_t from = 0;
    pthread_mutex_lock(&s->lock);
    const uint64_t finished = s->finished;
    while (!(found = look(s, layer, n, experts, records, state, &loading))) {
        const int moving = s->busy[DEMAND] + s->busy[BACK] + s->busy[DROP] + (s->q[DEMAND].head >= 0) + (s->q[BACK].head >= 0);
        if (!loading && (s->finished != finished || !moving)) {
            if (s->finished == finished) {       /* nothing on its way, and no room: the owner holds what it asks to replace */
                s->error = (mg_io_error){MG_IO_STUCK, 0, layer, -1, 0, mg_policy_budget(s->policy)};
                status = MG_E_FETCH;
            }
            break;
        }
        if (cancelled(s)) {
            status = MG_E_CANCEL;
            break;
        }
        if (!from) from = mg_now_ns();
        mg_st_sleep(s);
    }
    if (from) s->n.wait_ns += mg_now_ns() - from;
    pthread_mutex_unlock(&s->lock);
    return found < 0 ? found : status;
}

void mg_store_release(mg_store *s, int32_t layer, int32_t m, const int32_t *which, const int32_t *experts, uint8_t *state) {
    pthread_mutex_lock(&s->lock);
    for (int32_t k = 0; k < m; k++) {
        const int32_t i = which ? which[k] : k;
        if (state[i] != MG_LOADING && state[i] != MG_READY) continue;
        const int32_t id = mg_policy_id(s->policy, layer, experts[i]);
        state[i] = MG_DONE;
        let_go(s, id);
        if (!mg_policy_pinned(s->policy, id) && s->items[id].queue == DEMAND) mg_st_cancel(s, id);
        if (s->keep && !s->more) evicted(s, mg_policy_drop(s->policy, id));
    }
    pthread_mutex_unlock(&s->lock);
}

void mg_store_next(mg_store *s, int32_t layer) {
    pthread_mutex_lock(&s->lock);
    for (int32_t k = 1; k < s->n_layers; k++) {
        const int32_t id = mg_policy_id(s->policy, (layer + k) % s->n_layers, 0);
        if (mg_policy_state(s->policy, id) != MG_ABSENT) continue;
        if (mg_policy_admit(s->policy, id, MG_ADMIT_NEXT) < 0) break;
        mg_st_begin(s, id, DEMAND, s->n_threads);
    }
    if (s->q[DEMAND].head >= 0) mg_st_wake(s, s->n_threads);
    pthread_mutex_unlock(&s->lock);
}

void mg_store_predict(mg_store *s, int32_t layer, int32_t n, const int32_t *experts) {
    const int64_t size = s->size[layer], limit = s->scan ? window(s) : s->layers[layer].top_k * size;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < n && s->guessing + size <= limit; i++) {
        const int32_t id = mg_policy_id(s->policy, layer, experts[i]);
        if (mg_policy_state(s->policy, id) != MG_ABSENT) continue;
        const int32_t gone = mg_policy_admit(s->policy, id, MG_ADMIT_GUESS);
        if (gone < 0) break;
        evicted(s, gone);
        s->items[id].guess = 1;
        s->guessing += size;
        mg_st_begin(s, id, BACK, s->scan ? 1 : (size + GUESS_PART - 1) / GUESS_PART);
    }
    if (s->q[BACK].head >= 0 && !s->busy[DEMAND]) mg_st_wake(s, mg_st_background_threads(s));
    pthread_mutex_unlock(&s->lock);
}

/* --- start, budget, counters ----------------------------------------------------------------------------------------------- */

/* Keeps the most used record of `layer` that is not kept yet and was used at all. 1: kept, 0: no such record, -1: no room. */
static int keep_one(mg_store *s, int32_t layer, const double *uses, uint8_t *kept) {
    int32_t best = -1;
    const int32_t first = mg_policy_id(s->policy, layer, 0);
    for (int32_t id = first; id < first + s->layers[layer].n; id++)
        if (!kept[id] && uses[id] > 0 && (best < 0 || uses[id] > uses[best])) best = id;
    if (best < 0) return 0;
    if (mg_policy_keep(s->policy, best)) return -1;
    kept[best] = 1;
    return 1;
}

int32_t mg_store_seed(mg_store *s, const double *uses, int32_t per_layer) {
    int32_t n = 0;
    const int32_t count = mg_policy_count(s->policy);
    uint8_t *kept = calloc((size_t)count + 1, 1);
    if (!kept) return 0;
    pthread_mutex_lock(&s->lock);
    for (int32_t id = 0; id < count; id++) mg_policy_seed(s->policy, id, uses[id]);
    for (int32_t rank = 0, full = 0; rank < per_layer && !full; rank++)
        for (int32_t i = 0; i < s->n_layers && !full; i++) {
            const int one = keep_one(s, i, uses, kept);
            n += one > 0;
            full = one < 0;
        }
    pthread_mutex_unlock(&s->lock);
    free(kept);
    return n;
}

void mg_store_warm(mg_store *s) {
    pthread_mutex_lock(&s->lock);
    s->n_warm = mg_policy_warm_order(s->policy, s->warm);
    s->next_warm = 0;
    mg_st_wake(s, mg_st_background_threads(s));
    pthread_mutex_unlock(&s->lock);
}

int64_t mg_store_warming(mg_store *s) {
    pthread_mutex_lock(&s->lock);
    const int64_t n = s->n_warm - s->next_warm + s->busy[BACK] + (s->q[BACK].head >= 0);
    pthread_mutex_unlock(&s->lock);
    return n;
}

void mg_store_uses(mg_store *s, double *out) {
    for (int32_t id = 0; id < mg_policy_count(s->policy); id++) out[id] = s->items[id].uses;
}

/* Sets the I/O threads to work on `b` and waits. b->rows is s->rows, filled under the lock from `rows`. */
static int run_bulk(mg_store *s, bulk b, const int32_t *rows) {
    int status = MG_OK, begun = 0;
    pthread_mutex_lock(&s->lock);
    while (!begun || s->bulk.at < s->bulk.end || s->bulk_busy) {
        if (!begun && !s->bulk_busy) {           /* an earlier one that was cancelled has come to its end */
            if (rows) memcpy(s->rows, rows, (size_t)b.end * sizeof *rows);
            s->bulk = b;
            s->bulk_failed = 0;
            begun = 1;
            mg_st_wake(s, s->n_threads);
        }
        if (cancelled(s)) {
            s->bulk.at = s->bulk.end;
            status = MG_E_CANCEL;
            break;
        }
        mg_st_sleep(s);
    }
    if (status == MG_OK && s->bulk_failed) status = MG_E_FETCH;
    pthread_mutex_unlock(&s->lock);
    return status;
}

int mg_store_load(mg_store *s, int64_t offset, int64_t nbytes, void *dst) {
    return run_bulk(s, (bulk){.from = offset, .at = offset, .end = offset + nbytes, .dst = dst}, NULL);
}

void *mg_store_alloc(mg_store *s, int64_t nbytes) {
    for (int i = 0; i < MAX_ALLOCS; i++) {
        if (s->alloc[i]) continue;
        s->alloc_bytes[i] = nbytes;
        return s->alloc[i] = mg_big_alloc(nbytes);
    }
    return NULL;
}

/* At most max_rows of them. */
static int some_rows(mg_store *s, int64_t offset, int64_t row_bytes, int32_t n, const int32_t *rows) {
    int32_t missing = 0;
    for (int32_t i = 0; i < n; i++) {
        const int64_t at = offset + row_bytes * rows[i];
        if (mg_file_cached(s->file, at, row_bytes)) continue;
        s->missing[missing++] = rows[i];
        s->rows_from = s->rows_bytes ? least(s->rows_from, at) : at;
        s->rows_to = s->rows_bytes ? most(s->rows_to, at + row_bytes) : at + row_bytes;
        s->rows_bytes += round_up(row_bytes, MG_IO_ALIGN);
    }
    if (!missing) return MG_OK;
    return run_bulk(s, (bulk){.from = offset, .end = missing, .row_bytes = row_bytes, .rows = s->rows}, s->missing);
}

int mg_store_rows(mg_store *s, int64_t offset, int64_t row_bytes, int32_t n, const int32_t *rows) {
    int status = MG_OK;
    if (s->exact && s->rows_bytes > ROWS_KEPT) {
        mg_file_drop(s->file, s->rows_from, s->rows_to - s->rows_from);
        s->rows_bytes = 0;
    }
    for (int32_t i = 0; i < n && status == MG_OK; i += s->max_rows)
        status = some_rows(s, offset, row_bytes, (int32_t)least(s->max_rows, n - i), rows + i);
    return status;
}

/* Evicts down to `budget`, or everything (-1), and waits for what is being read or dropped. */
static int shrink(mg_store *s, int64_t budget) {
    int status = MG_OK;
    pthread_mutex_lock(&s->lock);
    cancel_background(s, -1, 0);
    s->n_warm = s->next_warm = 0;
    for (;;) {
        const int32_t n = budget < 0 ? mg_policy_drop_all(s->policy) : mg_policy_set_budget(s->policy, budget);
        if (n < 0) {
            status = MG_E_NOMEM;
            break;
        }
        evicted(s, n);
        const int reading = s->busy[DEMAND] + s->busy[BACK] + (s->q[DEMAND].head >= 0), dropping = s->busy[DROP] + (s->q[DROP].head >= 0);
        if (!dropping && (mg_policy_used(s->policy) <= most(budget, 0) || !reading)) break;
        if (cancelled(s)) {
            status = MG_E_CANCEL;
            break;
        }
        mg_st_sleep(s);
    }
    if (s->slots) mg_slots_trim(s->slots, budget < 0 ? 0 : mg_policy_budget(s->policy));
    pthread_mutex_unlock(&s->lock);
    return status;
}

int mg_store_set_budget(mg_store *s, int64_t budget) { return budget < 0 || budget > s->max_budget ? MG_E_NOMEM : shrink(s, budget); }

int mg_store_empty(mg_store *s) { return shrink(s, -1); }

void mg_store_counters(mg_store *s, mg_counters *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->n;
    out->faults = mg_st_faults(s);
    out->retries = mg_file_retries(s->file);
    out->direct = s->slots && mg_file_is_direct(s->file);
    out->cache_bytes = mg_policy_used(s->policy);
    out->budget = mg_policy_budget(s->policy);
    pthread_mutex_unlock(&s->lock);
}

void mg_store_error(mg_store *s, mg_io_error *out) {
    const int locked = s->pid == getpid() && pthread_mutex_lock(&s->lock) == 0;
    *out = s->error;
    if (locked) pthread_mutex_unlock(&s->lock);
}
