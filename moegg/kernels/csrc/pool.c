/* pool.c - threads that claim chunks of one job at a time; whoever is late finds nothing left and is not waited for.
 *
 * `left` counts the chunks of the current job that nobody has claimed. A claim is a decrement that found it positive: only then may
 * a worker read the job, and the job cannot end, nor the next begin, before that claim is counted in `done`. So the job's fields need
 * no lock, a worker that wakes late claims from whatever job is current or from none, and the caller waits for claimed chunks only.
 * Sleeping is decided by store-then-look on both sides (seq_cst): either the sleeper sees the work or the caller sees the sleeper.
 * A forked child has no workers: the pid tells, and they are made anew.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "kernels.h"

struct mg_pool {
    int n_threads, n_workers;                          /* wanted, the caller included; running, without it */
    int64_t spin_ns;
    pid_t pid;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    mg_task_fn fn;                                     /* the job: written while left <= 0 and all claims are done */
    void *ctx;
    int64_t n_items, chunk, n_chunks;
    _Alignas(64) atomic_llong left;                    /* unclaimed chunks; zero or less between jobs */
    _Alignas(64) atomic_llong done;                    /* finished chunks */
    atomic_int sleepers, waiting, stop;                /* workers asleep; caller asleep; pool is being freed */
};

typedef struct { mg_pool *pool; int id; } worker_arg;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int has_work(mg_pool *p) { return atomic_load(&p->left) > 0 || atomic_load(&p->stop); }
static int is_done(mg_pool *p) { return atomic_load(&p->done) == p->n_chunks; }        /* the caller's question only */

/* Looks for up to spin_ns; true as soon as ready(p). */
static int spin(mg_pool *p, int (*ready)(mg_pool *)) {
    if (ready(p)) return 1;
    if (p->spin_ns <= 0) return 0;
    for (const int64_t end = now_ns() + p->spin_ns; now_ns() < end;)
        for (int i = 0; i < 64; i++, relax())
            if (ready(p)) return 1;
    return 0;
}

/* Claims and runs chunks until none is left; wakes the caller if it sleeps and these were the last. */
static void work(mg_pool *p, int id) {
    int64_t mine = 0, n_chunks = 0;
    while (atomic_load_explicit(&p->left, memory_order_relaxed) > 0) {
        const int64_t left = atomic_fetch_sub(&p->left, 1);
        if (left <= 0) break;
        n_chunks = p->n_chunks;
        const int64_t begin = (n_chunks - left) * p->chunk, end = begin + p->chunk;
        p->fn(p->ctx, begin, end < p->n_items ? end : p->n_items, id);
        mine++;
    }
    if (mine && atomic_fetch_add(&p->done, mine) + mine == n_chunks && atomic_load(&p->waiting)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->finished);
        pthread_mutex_unlock(&p->lock);
    }
}

static void *worker(void *arg) {
    mg_pool *p = ((worker_arg *)arg)->pool;
    const int id = ((worker_arg *)arg)->id;
    free(arg);
    while (!atomic_load(&p->stop)) {
        work(p, id);
        if (spin(p, has_work)) continue;
        pthread_mutex_lock(&p->lock);
        atomic_fetch_add(&p->sleepers, 1);
        while (!has_work(p)) pthread_cond_wait(&p->work, &p->lock);
        atomic_fetch_sub(&p->sleepers, 1);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

static void init(mg_pool *p) {
    p->pid = getpid();
    p->n_workers = 0;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    atomic_store(&p->left, 0);
    atomic_store(&p->done, 0);
    atomic_store(&p->sleepers, 0);
    atomic_store(&p->waiting, 0);
    atomic_store(&p->stop, 0);
}

/* Creates the missing workers, signals blocked so that Ctrl-C reaches the main thread. What cannot be created is done without. */
static void hire(mg_pool *p) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (p->n_workers < p->n_threads - 1) {
        worker_arg *arg = malloc(sizeof *arg);
        if (arg) *arg = (worker_arg){p, p->n_workers + 1};
        if (!arg || pthread_create(&p->threads[p->n_workers], NULL, worker, arg)) {
            free(arg);
            p->n_threads = p->n_workers + 1;
            break;
        }
        p->n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

mg_pool *mg_pool_new(int n_threads) {
    mg_pool *p = aligned_alloc(64, mg_align64(sizeof *p));
    pthread_t *threads = malloc(sizeof *threads * (n_threads > 1 ? n_threads - 1 : 1));
    if (!p || !threads) {
        free(p);
        free(threads);
        return NULL;
    }
    *p = (mg_pool){.n_threads = n_threads > 1 ? n_threads : 1, .spin_ns = 200000, .threads = threads};
    init(p);
    return p;
}

void mg_pool_free(mg_pool *p) {
    if (!p) return;
    if (p->pid == getpid()) {                          /* the parent's workers and locks are not the child's to touch */
        atomic_store(&p->stop, 1);
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
        for (int i = 0; i < p->n_workers; i++) pthread_join(p->threads[i], NULL);
        pthread_cond_destroy(&p->finished);
        pthread_cond_destroy(&p->work);
        pthread_mutex_destroy(&p->lock);
    }
    free(p->threads);
    free(p);
}

int mg_pool_threads(const mg_pool *p) { return p->n_threads; }

void mg_pool_set_spin(mg_pool *p, int64_t us) { p->spin_ns = us * 1000; }

void mg_pool_run(mg_pool *p, mg_task_fn fn, void *ctx, int64_t n_items, int64_t chunk) {
    const int64_t n_chunks = (n_items + chunk - 1) / chunk;
    if (p->n_threads == 1 || n_chunks <= 1) {
        for (int64_t i = 0; i < n_items; i += chunk) fn(ctx, i, n_items - i < chunk ? n_items : i + chunk, 0);
        return;
    }
    if (p->pid != getpid()) init(p);
    if (p->n_workers < p->n_threads - 1) hire(p);
    p->fn = fn;
    p->ctx = ctx;
    p->n_items = n_items;
    p->chunk = chunk;
    p->n_chunks = n_chunks;
    atomic_store(&p->done, 0);
    atomic_store(&p->left, n_chunks);
    const int sleepers = atomic_load(&p->sleepers);
    if (sleepers > 0) {
        pthread_mutex_lock(&p->lock);
        for (int64_t i = 0; i < sleepers && i < n_chunks - 1; i++) pthread_cond_signal(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
    work(p, 0);
    if (spin(p, is_done)) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->waiting, 1);
    while (!is_done(p)) pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->waiting, 0);
    pthread_mutex_unlock(&p->lock);
}
