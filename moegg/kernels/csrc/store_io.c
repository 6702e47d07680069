/* store_io.c - the queues of the expert store and the threads that read (store_int.h). */
#include "store_int.h"
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define BULK_PART ((int64_t)4 << 20)
#define POLL_NS 20000000

void mg_st_sleep(mg_store *s) {
    struct timespec t;
#ifdef __APPLE__
    clock_gettime(CLOCK_REALTIME, &t);
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    t.tv_nsec += POLL_NS;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    s->waiting = 1;
    pthread_cond_timedwait(&s->done, &s->lock, &t);
    s->waiting = 0;
}

void mg_st_wake(mg_store *s, int n) {
    for (int i = 0; i < n && i < s->sleeping; i++) pthread_cond_signal(&s->work);
}

/* --- queues ------------------------------------------------------------------------------------------------------------- */

void mg_st_append(mg_store *s, int qi, int32_t id) {
    item *it = &s->items[id];
    it->queue = (int8_t)qi;
    it->prev = s->q[qi].tail;
    it->next = -1;
    if (it->prev >= 0) s->items[it->prev].next = id; else s->q[qi].head = id;
    s->q[qi].tail = id;
}

void mg_st_take_off(mg_store *s, int32_t id) {
    item *it = &s->items[id];
    if (it->queue == NO_QUEUE) return;
    if (it->prev >= 0) s->items[it->prev].next = it->next; else s->q[it->queue].head = it->next;
    if (it->next >= 0) s->items[it->next].prev = it->prev; else s->q[it->queue].tail = it->prev;
    it->queue = NO_QUEUE;
}

static int64_t read_bytes(const mg_store *s, int32_t id) {
    return round_up(s->layers[mg_policy_layer(s->policy, id)].record_bytes, RECORD_ALIGN);
}

static int64_t part_bytes(const mg_store *s, int32_t id) {
    const int64_t parts = s->items[id].parts;
    return round_up((read_bytes(s, id) + parts - 1) / parts, RECORD_ALIGN);
}

void mg_st_begin(mg_store *s, int32_t id, int qi, int64_t wanted) {
    item *it = &s->items[id];
    const int64_t size = read_bytes(s, id), fewest = (size + s->max_part - 1) / s->max_part, finest = most(size / s->min_part, 1);
    const int32_t layer = mg_policy_layer(s->policy, id);
    mg_st_take_off(s, id);                             /* it may still wait to be dropped */
    it->parts = (int16_t)least(most(least(wanted, finest), fewest), 1000);
    it->parts = (int16_t)((size + part_bytes(s, id) - 1) / part_bytes(s, id));
    it->taken = 0;
    it->joined = 0;
    it->left = it->parts;
    s->n.peak_bytes = most(s->n.peak_bytes, mg_policy_used(s->policy));
    if (s->slots) it->slot = mg_slots_take(s->slots, s->cls[layer], mg_policy_budget(s->policy));
    mg_st_append(s, qi, id);
}

void mg_st_no_guess(mg_store *s, int32_t id) {
    if (!s->items[id].guess) return;
    s->items[id].guess = 0;
    s->guessing -= size_of(s, id);
}

void mg_st_lost(mg_store *s, int32_t id) {
    mg_st_no_guess(s, id);
    if (s->slots) mg_slots_give(s->slots, s->cls[mg_policy_layer(s->policy, id)], s->items[id].slot);
}

int mg_st_cancel(mg_store *s, int32_t id) {
    if (s->items[id].queue == NO_QUEUE || s->items[id].taken) return 0;
    mg_st_take_off(s, id);
    mg_policy_failed(s->policy, id);
    mg_st_lost(s, id);
    return 1;
}

/* --- jobs --------------------------------------------------------------------------------------------------------------- */

static int take_part(mg_store *s, int qi, job *j) {
    const int32_t id = s->q[qi].head;
    if (id < 0) return 0;
    item *it = &s->items[id];
    const int64_t part = part_bytes(s, id), at = part * it->taken;
    const int64_t need = least(part, s->layers[mg_policy_layer(s->policy, id)].record_bytes - at);
    int64_t *counter = qi == DEMAND ? &s->n.demanded : it->guess ? &s->n.predicted : &s->n.warmed;
    *j = (job){.queue = qi, .id = id, .offset = it->offset + at, .need = need, .room = round_up(need, MG_IO_ALIGN),
               .dst = s->slots ? memory_of(s, id) + at : NULL, .counter = counter};
    if (++it->taken == it->parts) mg_st_take_off(s, id);
    s->busy[qi]++;
    return 1;
}

static int take_bulk(mg_store *s, job *j) {
    bulk *b = &s->bulk;
    const int64_t n = least(b->rows ? ROWS_JOB : BULK_PART, b->end - b->at);
    if (n <= 0) return 0;
    *j = (job){.queue = NO_QUEUE, .id = -1, .counter = &s->n.loaded};
    if (b->rows) {
        j->n_rows = (int32_t)n;
        j->offset = b->from;
        j->need = b->row_bytes;
        memcpy(j->rows, b->rows + b->at, (size_t)n * sizeof *j->rows);
    } else {
        j->offset = b->at;
        j->need = n;
        j->room = round_up(n, MG_IO_ALIGN);
        j->dst = b->dst ? b->dst + (b->at - b->from) : NULL;
    }
    b->at += n;
    s->bulk_busy++;
    return 1;
}

/* The next record of the warm-up goes into the background queue; it takes free room only. */
static void more_warm(mg_store *s) {
    while (s->next_warm < s->n_warm && s->q[BACK].head < 0) {
        const int32_t id = s->warm[s->next_warm++];
        if (mg_policy_state(s->policy, id) != MG_ABSENT) continue;
        if (mg_policy_admit(s->policy, id, MG_ADMIT_FREE) < 0) s->next_warm = s->n_warm;
        else mg_st_begin(s, id, BACK, (size_of(s, id) + GUESS_PART - 1) / GUESS_PART);
    }
}

/* Half of the threads at most read in the background, so that a demand finds an idle one; a scan uses all. */
int mg_st_background_threads(const mg_store *s) { return s->scan ? s->n_threads : (s->n_threads + 1) / 2; }

static int next_job(mg_store *s, job *j) {
    const int32_t old = s->q[DROP].head;
    if (old >= 0) {
        /* records of a cycle may share pages with their neighbours */
        const int64_t lead = s->keep ? RECORD_ALIGN : 0;
        const int64_t end = s->keep ? s->layers[mg_policy_layer(s->policy, old)].record_bytes : read_bytes(s, old);
        *j = (job){.queue = DROP, .id = old, .offset = s->items[old].offset + lead, .need = end - lead};
        mg_st_take_off(s, old);
        s->busy[DROP]++;
        return 1;
    }
    if (take_part(s, DEMAND, j)) return 1;
    if (take_bulk(s, j)) return 1;
    if (s->busy[DEMAND] || s->bulk_busy || s->busy[BACK] >= mg_st_background_threads(s)) return 0;
    more_warm(s);
    return take_part(s, BACK, j);
}

static void finish_item(mg_store *s, const job *j, int status, const mg_io_error *error) {
    item *it = &s->items[j->id];
    if (status != MG_IO_OK) {
        if (mg_policy_pinned(s->policy, j->id) || s->error.kind == MG_IO_OK) {
            s->error = *error;
            s->error.layer = mg_policy_layer(s->policy, j->id);
            s->error.expert = it->expert;
        }
        it->failed = 1;
        it->left = (int16_t)(it->left - (it->parts - it->taken));
        it->parts = it->taken;
        mg_st_take_off(s, j->id);
    }
    if (--it->left) return;
    if (it->failed) {
        it->failed = 0;
        mg_policy_failed(s->policy, j->id);
        mg_st_lost(s, j->id);
    } else {
        mg_policy_loaded(s->policy, j->id);
    }
    s->finished++;
}

static void finish(mg_store *s, const job *j, int status, const mg_io_error *error) {
    const uint64_t finished = s->finished;
    int tell = j->queue == DROP;
    if (j->queue != DROP) {
        s->n.reads++;
        if (status == MG_IO_OK) *j->counter += j->n_rows ? j->n_rows * j->need : j->need;
    }
    if (j->queue == NO_QUEUE) {
        if (status != MG_IO_OK) {
            s->error = *error;
            s->bulk_failed = 1;
            s->bulk.at = s->bulk.end;
        }
        tell = --s->bulk_busy == 0 && s->bulk.at >= s->bulk.end;
    } else {
        s->busy[j->queue]--;
        if (j->queue != DROP) finish_item(s, j, status, error);
    }
    if (s->waiting && (tell || s->finished != finished)) pthread_cond_signal(&s->done);
    const int idle = !s->busy[DEMAND] && !s->bulk_busy;
    if (idle && (s->q[BACK].head >= 0 || s->next_warm < s->n_warm)) mg_st_wake(s, mg_st_background_threads(s) - 1);
}

static int read_rows(mg_store *s, const job *j, mg_io_error *error) {
    int status = MG_IO_OK;
    for (int32_t i = 0; i < j->n_rows; i++) mg_file_want(s->file, j->offset + j->need * j->rows[i], j->need);
    for (int32_t i = 0; i < j->n_rows && status == MG_IO_OK; i++)
        status = mg_file_fill(s->file, j->offset + j->need * j->rows[i], j->need, NULL, error);
    return status;
}

/* Populating a mapping counts as major faults where it waits for a read: those are meant, others are not. */
static int64_t major_faults(int who) {
    struct rusage u;
    return getrusage(who, &u) ? 0 : u.ru_majflt;
}

int64_t mg_st_faults(const mg_store *s) { return major_faults(RUSAGE_SELF) - s->faults_before - s->io_faults; }

void *mg_st_io_thread(void *arg) {
    mg_store *s = arg;
    mg_io_error error;
    job j;
    int64_t seen = 0;
    pthread_mutex_lock(&s->lock);
    void *buf = s->copies ? s->copies + MG_COPY_BYTES * s->started++ : NULL;
    while (!s->quit) {
        if (!next_job(s, &j)) {
            s->sleeping++;
            pthread_cond_wait(&s->work, &s->lock);
            s->sleeping--;
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        int status = MG_IO_OK;
        if (j.queue == DROP) mg_file_drop(s->file, j.offset, j.need);
        else if (j.n_rows) status = read_rows(s, &j, &error);
        else if (j.dst) status = mg_file_read(s->file, j.dst, j.need, j.room, j.offset, &error);
        else status = mg_file_fill(s->file, j.offset, j.need, buf, &error);
#ifdef RUSAGE_THREAD
        const int64_t faults = j.dst ? seen : major_faults(RUSAGE_THREAD);
#else
        const int64_t faults = seen;
#endif
        pthread_mutex_lock(&s->lock);
        s->io_faults += faults - seen;
        seen = faults;
        finish(s, &j, status, &error);
    }
    const int last = --s->refs == 0;
    pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->lock);
    if (last) mg_st_destroy(s);
    return NULL;
}
