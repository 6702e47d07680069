/* store_int.h - what store.c, store_io.c and store_open.c share. A record is an `item`; an item with reads to be done hangs in
 * one queue and is read in parts.
 *
 * Who changes what, always under the lock: the owner admits, evicts, pins and queues; an I/O thread takes a part, reads without
 * the lock, and reports it. The last part of a record makes it ready. A record that is being read is never a victim (policy.h).
 */
#ifndef MOEGG_STORE_INT_H
#define MOEGG_STORE_INT_H
#include "slots.h"
#include "store.h"
#include <pthread.h>
#include <sys/types.h>

#define RECORD_ALIGN 16384
#define GUESS_PART ((int64_t)512 << 10)       /* what a demand may have to wait for */
#define ROWS_JOB 16                           /* rows that one I/O thread takes at a time */
#define MAX_ALLOCS 8

enum { DROP = 0, DEMAND = 1, BACK = 2, N_QUEUES = 3, NO_QUEUE = -1 };

typedef struct {
    int64_t offset;               /* in the file */
    double uses;                  /* in all passes */
    int32_t expert, slot, prev, next;
    int16_t parts, taken, left;   /* reads of the record: in all, begun, not yet done */
    int8_t queue, miss, guess;    /* miss: counts in `outstanding`; guess: nobody has asked for it yet */
    int8_t failed, joined;        /* joined: its read had begun before it was asked for */
} item;

typedef struct {
    int queue;                    /* NO_QUEUE: a piece of the bulk load */
    int32_t id, n_rows;           /* n_rows: of a table at offset, `need` bytes each */
    int64_t offset, need, room;
    uint8_t *dst;                 /* NULL: page cache */
    int64_t *counter;             /* of bytes */
    int32_t rows[ROWS_JOB];
} job;

typedef struct {                  /* one at a time: a range of the file in pieces of BULK_PART, or rows of a table */
    int64_t at, end;              /* next byte or row, and the end */
    int64_t from, row_bytes;      /* where the range or the table begins */
    uint8_t *dst;
    const int32_t *rows;          /* NULL: a range */
} bulk;

struct mg_store {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int refs, quit, waiting, sleeping;           /* waiting: the owner sleeps on `done`; sleeping: I/O threads on `work` */
    int n_threads;
    pid_t pid;                    /* I/O threads do not live on in a forked child */
    volatile const int32_t *cancel;
    mg_policy *policy;
    mg_file *file;
    mg_slots *slots;              /* NULL: page cache */
    int32_t n_layers;
    mg_store_layer *layers;       /* [n_layers]; their slot tables live in items */
    int32_t *cls;                 /* [n_layers] size class */
    int64_t *size;                /* [n_layers] bytes that a record takes of the budget: of its slot, if it has one */
    uint8_t *keep;                /* [n_layers] NULL: not a cycle */
    int32_t *scratch;             /* [largest n] */
    item *items;                  /* [records] */
    struct { int32_t head, tail; } q[N_QUEUES];
    int busy[N_QUEUES], bulk_busy, bulk_failed;
    bulk bulk;
    int32_t *warm, n_warm, next_warm;            /* [records] */
    int64_t min_part, max_part, minimum, max_budget;
    int64_t outstanding, guessing;               /* bytes: misses not yet released, guesses not yet asked for */
    int scan, more, doubt;
    int64_t faults_before, faults_seen, io_faults;   /* major faults: of the process at the start and last pass; of I/O threads */
    int32_t *missing, *rows, max_rows;           /* [max_rows] rows to be read: the owner's, and what the threads see */
    int64_t rows_from, rows_to, rows_bytes;
    int exact;
    uint8_t *copies;              /* NULL, or a buffer per I/O thread for fills by copy */
    int64_t copies_bytes;
    int started;                  /* I/O threads that have taken theirs */
    uint64_t finished;
    void *alloc[MAX_ALLOCS];
    int64_t alloc_bytes[MAX_ALLOCS];
    mg_counters n;
    mg_io_error error;
};

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t size_of(const mg_store *s, int32_t id) { return s->size[mg_policy_layer(s->policy, id)]; }
static inline int cancelled(const mg_store *s) { return s->cancel && __atomic_load_n(s->cancel, __ATOMIC_RELAXED); }

static inline uint8_t *memory_of(const mg_store *s, int32_t id) {
    const item *it = &s->items[id];
    if (!s->slots) return (uint8_t *)mg_file_map(s->file) + it->offset;
    return mg_slots_at(s->slots, s->cls[mg_policy_layer(s->policy, id)], it->slot);
}

/* store_io.c; with the lock held */
void mg_st_append(mg_store *s, int queue, int32_t id);
void mg_st_take_off(mg_store *s, int32_t id);            /* of its queue, if it is in one */
/* Queues the reads of an admitted record; `wanted` parts, if it is large enough for so many. */
void mg_st_begin(mg_store *s, int32_t id, int queue, int64_t wanted);
int mg_st_cancel(mg_store *s, int32_t id);               /* 1: no read of the item had begun, and none will */
void mg_st_no_guess(mg_store *s, int32_t id);            /* somebody asks for it, or it goes */
void mg_st_lost(mg_store *s, int32_t id);                /* its memory is free */
void mg_st_wake(mg_store *s, int n);
void mg_st_sleep(mg_store *s);                           /* on `done`, at most 20 ms: how soon a cancel is seen */
int mg_st_background_threads(const mg_store *s);
int64_t mg_st_faults(const mg_store *s);                 /* see mg_counters */
void *mg_st_io_thread(void *store);

void mg_st_destroy(mg_store *s);                         /* store_open.c; by the last that leaves, without the lock */

#endif
