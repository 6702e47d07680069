/* store_open.c - making and freeing the expert store (store_int.h). */
#include "store_int.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLOSE_POLLS 50                        /* how long closing waits for reads that hang */
#define SHARE 8                               /* records up to an eighth larger share slots with smaller ones */

static int64_t record_size(const mg_store_layer *l) { return round_up(l->record_bytes, RECORD_ALIGN); }

static void policy_config(mg_policy_config *c, int32_t n, const mg_store_layer *l, int32_t *experts, int32_t *top_k,
                          int64_t *bytes) {
    for (int32_t i = 0; i < n; i++) {
        experts[i] = l[i].n;
        top_k[i] = l[i].top_k;
        bytes[i] = record_size(&l[i]);
    }
    *c = (mg_policy_config){n, experts, top_k, bytes, 0, 0, NULL};
}

int64_t mg_store_minimum(int32_t n_layers, const mg_store_layer *layers, const uint8_t *keep) {
    int64_t kept = 0, need = 0;
    for (int32_t i = 0; i < n_layers; i++) {
        int32_t experts, top_k;
        int64_t bytes;
        mg_policy_config c;
        policy_config(&c, 1, &layers[i], &experts, &top_k, &bytes);
        if (keep && keep[i]) kept += mg_policy_minimum(&c);
        else need = most(need, mg_policy_minimum(&c));
    }
    return kept + need;
}

/* Slots of one size for records of nearly one size, as recipes make them that give some layers more bits: memory that moves between
 * sizes is given back and faulted in anew for every record, in small pages. Not where that would raise the least budget, or where
 * all records fit as they are. */
static void share_slots(mg_policy_config *p, const mg_store_layer *l, int64_t *bytes) {
    const int64_t minimum = mg_policy_minimum(p);
    int64_t total = 0;
    for (int32_t i = 0; i < p->n_layers; i++) total += l[i].n * bytes[i];
    if (total <= p->budget) return;
    for (int32_t i = 0; i < p->n_layers; i++)
        for (int32_t j = 0; j < p->n_layers; j++)
            if (record_size(&l[j]) <= record_size(&l[i]) + record_size(&l[i]) / SHARE) bytes[i] = most(bytes[i], record_size(&l[j]));
    for (int32_t i = 0; mg_policy_minimum(p) > minimum && i < p->n_layers; i++) bytes[i] = record_size(&l[i]);
}

static int make_slots(mg_store *s) {
    int32_t n = 0, *counts = calloc((size_t)s->n_layers + 1, sizeof *counts);
    int64_t *sizes = calloc((size_t)s->n_layers + 1, sizeof *sizes);
    for (int32_t i = 0; counts && sizes && i < s->n_layers; i++) {
        int32_t k = 0;
        while (k < n && sizes[k] != s->size[i]) k++;
        n += k == n;
        sizes[k] = s->size[i];
        counts[k] += s->layers[i].n;
        s->cls[i] = k;
    }
    for (int32_t k = 0; counts && sizes && k < n; k++) counts[k] = (int32_t)least(counts[k], s->max_budget / sizes[k]);
    if (counts && sizes) s->slots = mg_slots_new(n, sizes, counts);
    free(counts);
    free(sizes);
    return s->slots != NULL;
}

static int make_items(mg_store *s, const mg_store_config *c) {
    int32_t widest = 0, id = 0;
    for (int32_t i = 0; i < s->n_layers; i++) widest = c->layers[i].n > widest ? c->layers[i].n : widest;
    const size_t count = (size_t)mg_policy_count(s->policy) + 1;
    s->items = calloc(count, sizeof *s->items);
    s->warm = malloc(count * sizeof *s->warm);
    s->scratch = malloc((size_t)(widest + 1) * sizeof *s->scratch);
    s->missing = malloc(2 * (size_t)s->max_rows * sizeof *s->missing);
    s->rows = s->missing + s->max_rows;
    if (!s->items || !s->warm || !s->scratch || !s->missing) return 0;
    for (int32_t i = 0; i < s->n_layers; i++)
        for (int32_t x = 0; x < c->layers[i].n; x++, id++) {
            const mg_store_layer *l = &c->layers[i];
            s->items[id] = (item){.offset = l->base + l->stride * l->slot[x], .expert = x, .queue = NO_QUEUE};
        }
    return 1;
}

/* Layers of a cycle that do not stay take one another's places, whatever their sizes. */
static void share_places(mg_store *s, const uint8_t *keep) {
    int64_t place = 0;
    memcpy(s->keep, keep, (size_t)s->n_layers);
    for (int32_t i = 0; i < s->n_layers; i++) place = keep[i] ? place : most(place, s->size[i]);
    for (int32_t i = 0; i < s->n_layers; i++) s->size[i] = keep[i] ? s->size[i] : place;
}

static int make(mg_store *s, const mg_store_config *c) {
    const size_t n = (size_t)c->n_layers + 1;
    s->keep = c->keep ? malloc(n) : NULL;
    int32_t *experts = malloc(n * sizeof *experts), *top_k = malloc(n * sizeof *top_k);
    s->layers = malloc(n * sizeof *s->layers);
    s->cls = malloc(n * sizeof *s->cls);
    s->size = malloc(n * sizeof *s->size);
    if (experts && top_k && s->layers && s->cls && s->size && (s->keep || !c->keep)) {
        mg_policy_config p;
        memcpy(s->layers, c->layers, (size_t)c->n_layers * sizeof *s->layers);
        policy_config(&p, c->n_layers, c->layers, experts, top_k, s->size);
        if (c->keep) share_places(s, c->keep);
        p.keep = s->keep;
        p.budget = c->budget;
        p.half_life = c->half_life;
        if (c->file.direct && !c->keep) share_slots(&p, c->layers, s->size);
        s->policy = mg_policy_new(&p);
    }
    free(experts);
    free(top_k);
    s->copies = s->copies_bytes ? mg_big_alloc(s->copies_bytes) : NULL;
    return s->policy && make_items(s, c) && (!c->file.direct || make_slots(s)) && (!s->copies_bytes || s->copies);
}

void mg_st_destroy(mg_store *s) {
    for (int i = 0; i < MAX_ALLOCS; i++) mg_big_free(s->alloc[i], s->alloc_bytes[i]);
    mg_big_free(s->copies, s->copies_bytes);
    mg_slots_free(s->slots);
    mg_policy_free(s->policy);
    mg_file_close(s->file);
    free(s->layers);
    free(s->cls);
    free(s->size);
    free(s->keep);
    free(s->scratch);
    free(s->items);
    free(s->warm);
    free(s->missing);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void start_threads(mg_store *s, int n) {
    sigset_t all, old;
    pthread_attr_t attr;
    sigfillset(&all);                            /* signals belong to the other threads; faults come in any case */
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        pthread_t t;
        if (pthread_create(&t, &attr, mg_st_io_thread, s)) break;
        s->n_threads++;
        s->refs++;
    }
    pthread_mutex_unlock(&s->lock);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

mg_store *mg_store_open(const mg_store_config *c, mg_io_error *error) {
    *error = (mg_io_error){MG_IO_ERRNO, ENOMEM, -1, -1, 0, c->budget};
    const int64_t minimum = mg_store_minimum(c->n_layers, c->layers, c->keep);
    if (c->budget < minimum) {
        *error = (mg_io_error){MG_IO_BUDGET, 0, -1, -1, 0, minimum};
        return NULL;
    }
    mg_store *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
#ifndef __APPLE__
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
#endif
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->done, &attr);
    pthread_condattr_destroy(&attr);
    s->refs = 1;
    s->pid = getpid();
    s->n_layers = c->n_layers;
    s->cancel = c->cancel;
    s->max_rows = c->max_rows > 0 ? c->max_rows : 1;
    s->exact = c->file.exact || c->file.direct;
    s->copies_bytes = c->copy ? c->n_threads * MG_COPY_BYTES : 0;
    s->min_part = most(round_up(c->min_part, RECORD_ALIGN), RECORD_ALIGN);
    s->max_part = most(round_up(c->max_part, RECORD_ALIGN), s->min_part);
    s->max_budget = most(c->max_budget, c->budget);
    s->minimum = minimum;
    for (int i = 0; i < N_QUEUES; i++) s->q[i].head = s->q[i].tail = -1;
    if (!make(s, c)) {
        mg_st_destroy(s);
        return NULL;
    }
    s->faults_before = mg_st_faults(s);
    s->file = mg_file_open(&c->file, error);
    if (!s->file) {
        mg_st_destroy(s);
        return NULL;
    }
    start_threads(s, c->n_threads);
    if (!s->n_threads) {
        *error = (mg_io_error){MG_IO_ERRNO, EAGAIN, -1, -1, 0, 0};
        mg_store_close(s);
        return NULL;
    }
    return s;
}

void mg_store_close(mg_store *s) {
    if (!s || s->pid != getpid()) return;        /* in a forked child the lock may be held for ever; the system frees all */
    pthread_mutex_lock(&s->lock);
    s->quit = 1;
    pthread_cond_broadcast(&s->work);
    for (int i = 0; i < CLOSE_POLLS && s->refs > 1; i++) mg_st_sleep(s);
    const int last = --s->refs == 0;
    pthread_mutex_unlock(&s->lock);
    if (last) mg_st_destroy(s);                        /* otherwise the last I/O thread does, when its read comes back */
}
