/* pool.c - threads that claim chunks of one job at a time; whoever is late finds nothing left and is not waited for.
 *
 * `left` counts the chunks of the current job that nobody has claimed. A claim is an exchange that lowers it from a positive value:
 * only then may a worker read the job, and the job cannot end, nor the next begin, before that claim is counted in `done`. So the job's
 * fields need no lock, a worker that wakes late claims from whatever job is current or from none, and the caller waits for
 * claimed chunks only. Sleeping is decided by store-then-look on both sides (seq_cst): either the sleeper sees the work or the
 * caller sees the sleeper. A forked child has no workers: the pid tells, and they are made anew.
 *
 * The caller still waits for a worker that the system stopped in the middle of a chunk: with a busy neighbour that is
 * milliseconds, again and again. So a pool that meets it leaves one worker out for a while, longer each time it happens again.
 * Measured on two cores beside a pinned busy loop, q4_0 products of 50 us: 28 GB/s, without this 18, one thread alone 33.
 *
 * A claim takes 1 / (2 threads) of what is left, so that threads read long runs of weights (a prefetch beyond the end of a claim is
 * the neighbour's), meet at the counter rarely, and still end together.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "kernels.h"

struct mg_pool {
    int n_threads, n_workers;                          /* wanted, the caller included; running, without it */
    int64_t spin_ns;
    pid_t pid;
    pthread_t *threads;
    struct worker_arg *args;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    mg_task_fn fn;                                     /* the job: written while left <= 0 and all claims are done */
    void *ctx;
    int64_t n_items, chunk, n_chunks;
    _Alignas(64) atomic_llong left;                    /* unclaimed chunks; zero or less between jobs */
    _Alignas(64) atomic_llong done;                    /* finished chunks */
    atomic_int sleepers, waiting, stop;                /* workers asleep; caller asleep; pool is being freed */
    atomic_int n_active;                               /* workers that may claim: ids 1..n_active */
    int64_t grow_at, backoff_ns;                       /* when the next worker may come back; how long the next one stays out */
};

typedef struct worker_arg { mg_pool *pool; int id; } worker_arg;

enum {
    CALLER_SPIN_NS = 50000,                            /* then it sleeps, and a stopped worker may be moved to its core */
    STALL_NS = 500000, STALL_CHUNKS = 8,               /* waiting longer than both, in chunks of the caller's pace, is a stall */
    BACKOFF_NS = 4000000, BACKOFF_MAX_NS = 128000000,
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int has_work(mg_pool *p, int id) {
    return (atomic_load(&p->left) > 0 && id <= atomic_load(&p->n_active)) || atomic_load(&p->stop);
}
static int is_done(mg_pool *p, int id) { return atomic_load(&p->done) == p->n_chunks; }        /* the caller's question only */

/* Looks for up to ns; true as soon as ready(p, id). */
static int spin(mg_pool *p, int id, int (*ready)(mg_pool *, int), int64_t ns) {
    if (ready(p, id)) return 1;
    if (ns <= 0) return 0;
    for (const int64_t end = mg_now_ns() + ns; mg_now_ns() < end;)
        for (int i = 0; i < 64; i++, relax())
            if (ready(p, id)) return 1;
    return 0;
}

/* Claims and runs chunks until none is left, returns how many; wakes the caller if it sleeps and these were the last. */
static int64_t work(mg_pool *p, int id) {
    int64_t mine = 0, n_chunks = 0;
    long long left = atomic_load(&p->left);
    while (left > 0) {
        const int64_t share = left / (2 * p->n_threads), take = share > 1 ? share : 1;
        if (!atomic_compare_exchange_weak(&p->left, &left, left - take)) continue;
        n_chunks = p->n_chunks;
        const int64_t begin = (n_chunks - left) * p->chunk, end = begin + take * p->chunk;
        p->fn(p->ctx, begin, end < p->n_items ? end : p->n_items, id);
        mine += take;
        left = atomic_load(&p->left);
    }
    if (mine && atomic_fetch_add(&p->done, mine) + mine == n_chunks && atomic_load(&p->waiting)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->finished);
        pthread_mutex_unlock(&p->lock);
    }
    return mine;
}

static void *worker(void *arg) {
    mg_pool *p = ((worker_arg *)arg)->pool;
    const int id = ((worker_arg *)arg)->id;
    while (!atomic_load(&p->stop)) {
        if (id <= atomic_load(&p->n_active)) work(p, id);
        if (spin(p, id, has_work, p->spin_ns)) continue;
        pthread_mutex_lock(&p->lock);
        atomic_fetch_add(&p->sleepers, 1);
        while (!has_work(p, id)) pthread_cond_wait(&p->work, &p->lock);
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
    atomic_store(&p->n_active, p->n_threads - 1);
    p->grow_at = 0;
    p->backoff_ns = BACKOFF_NS;
}

/* Creates the missing workers, signals blocked so that Ctrl-C reaches the main thread. What cannot be created is done without. */
static void hire(mg_pool *p) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (p->n_workers < p->n_threads - 1) {
        p->args[p->n_workers] = (worker_arg){p, p->n_workers + 1};
        if (pthread_create(&p->threads[p->n_workers], NULL, worker, &p->args[p->n_workers])) {
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
    worker_arg *args = malloc(sizeof *args * (n_threads > 1 ? n_threads - 1 : 1));
    if (!p || !threads || !args) {
        free(p);
        free(threads);
        free(args);
        return NULL;
    }
    *p = (mg_pool){.n_threads = n_threads > 1 ? n_threads : 1, .spin_ns = 200000, .threads = threads, .args = args};
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
    free(p->args);
    free(p);
}

int mg_pool_threads(const mg_pool *p) { return p->n_threads; }

void mg_pool_set_spin(mg_pool *p, int64_t us) { p->spin_ns = us * 1000; }

/* A stall leaves one more worker out; one comes back when its time is over. A long good time makes the next penalty short. */
static void shrink(mg_pool *p, int64_t now) {
    if (now - p->grow_at > 4 * p->backoff_ns) p->backoff_ns = BACKOFF_NS;
    atomic_fetch_sub(&p->n_active, 1);
    p->grow_at = now + p->backoff_ns;
    if (p->backoff_ns < BACKOFF_MAX_NS) p->backoff_ns *= 2;
}

static void grow(mg_pool *p, int64_t now) {
    if (now < p->grow_at) return;
    atomic_fetch_add(&p->n_active, 1);
    p->grow_at = now + BACKOFF_NS;
}

static void wake(mg_pool *p, int64_t n) {
    const int sleepers = atomic_load(&p->sleepers);
    if (sleepers == 0) return;
    pthread_mutex_lock(&p->lock);
    if (n < sleepers && atomic_load(&p->n_active) == p->n_workers)
        for (int64_t i = 0; i < n; i++) pthread_cond_signal(&p->work);
    else pthread_cond_broadcast(&p->work);             /* a signal could reach one that is left out */
    pthread_mutex_unlock(&p->lock);
}

void mg_pool_run(mg_pool *p, mg_task_fn fn, void *ctx, int64_t n_items, int64_t chunk) {
    const int64_t n_chunks = (n_items + chunk - 1) / chunk;
    if (p->n_threads == 1 || n_chunks <= 1) {
        for (int64_t i = 0; i < n_items; i += chunk) fn(ctx, i, n_items - i < chunk ? n_items : i + chunk, 0);
        return;
    }
    if (p->pid != getpid()) init(p);
    if (p->n_workers < p->n_threads - 1) hire(p);
    const int64_t start = mg_now_ns();
    if (atomic_load(&p->n_active) < p->n_workers) grow(p, start);
    p->fn = fn;
    p->ctx = ctx;
    p->n_items = n_items;
    p->chunk = chunk;
    p->n_chunks = n_chunks;
    atomic_store(&p->done, 0);
    atomic_store(&p->left, n_chunks);
    if (atomic_load(&p->n_active) > 0) wake(p, n_chunks - 1);
    const int64_t mine = work(p, 0);
    if (is_done(p, 0)) return;
    const int64_t idle = mg_now_ns();
    if (!spin(p, 0, is_done, p->spin_ns < CALLER_SPIN_NS ? p->spin_ns : CALLER_SPIN_NS)) {
        pthread_mutex_lock(&p->lock);
        atomic_store(&p->waiting, 1);
        while (!is_done(p, 0)) pthread_cond_wait(&p->finished, &p->lock);
        atomic_store(&p->waiting, 0);
        pthread_mutex_unlock(&p->lock);
        const int64_t now = mg_now_ns();
        if (mine && now - idle > STALL_NS && now - idle > STALL_CHUNKS * (idle - start) / mine) shrink(p, now);
    }
}
