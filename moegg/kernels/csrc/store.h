/* store.h - the store: brings expert records, or the layers of a dense model, into memory under a byte budget, with I/O threads
 * of its own.
 *
 * Two residencies behind one interface. Direct: records in anonymous slots, read past the page cache. Page cache: the mapping
 * itself; the I/O threads bring exact extents in and drop them again. Which records stay is policy.h's business.
 * One owner thread calls; I/O threads (not the compute pool's) read. Order: demanded records, then bulk loads, and only while
 * none of these is queued or being read, guesses, then the warm-up. One lock guards everything but the reads themselves; a record
 * is published under it. Waits end when `cancel` is set. `layer` counts the layers that have experts.
 * Layers of a dense model are used in a cycle, each once per pass: layers of one record, of which some stay (`keep`) and the
 * others are forgotten as soon as they were used and read again in time (mg_store_next).
 */
#ifndef MOEGG_STORE_H
#define MOEGG_STORE_H
#include "diskfile.h"
#include "kernels.h"
#include "policy.h"

typedef struct mg_store mg_store;

typedef struct {
    int32_t n, top_k;
    int64_t base, stride, record_bytes;       /* record of expert x: base + slot[x] * stride, both multiples of 16 KiB */
    const int32_t *slot;                      /* [n]; copied */
} mg_store_layer;

typedef struct {
    mg_file_config file;
    int32_t n_layers;
    const mg_store_layer *layers;             /* [n_layers] */
    int64_t budget, max_budget;               /* bytes of records in memory; max_budget: what set_budget may ask for */
    int32_t n_threads;                        /* I/O threads */
    int32_t max_rows;                         /* of a looked-up table in one pass */
    int64_t min_part, max_part;               /* bytes that one read of a record has at least and at most; multiples of 16 KiB */
    int32_t copy;                             /* fill the page cache by reads whose copy is thrown away, not by advice */
    double half_life;                         /* tokens, see policy.h */
    const uint8_t *keep;                      /* NULL, or a cycle: [n_layers] layers of one record each, 1: it stays */
    volatile const int32_t *cancel;           /* NULL, or non-zero: waits end */
} mg_store_config;

typedef struct {
    int64_t hits, misses;                     /* experts that a layer needed: present when it asked, or not */
    int64_t demanded, predicted, wasted, warmed, loaded;    /* bytes: demanded, guessed, of these in vain, warm-up, bulk */
    int64_t reads, retries, evictions;        /* reads: calls to the system */
    int64_t wait_ns;                          /* the owner stood still for a record */
    int64_t faults;                           /* major faults outside the I/O threads: somebody waited for a page */
    int64_t cache_bytes, peak_bytes, budget;  /* records in memory */
    int64_t tokens;                           /* of all passes */
    int64_t direct;                           /* 1: reads go past the page cache */
} mg_counters;

/* NULL: error tells (MG_IO_BUDGET: nbytes is the smallest budget). */
mg_store *mg_store_open(const mg_store_config *c, mg_io_error *error);
void mg_store_close(mg_store *s);             /* a read that hangs keeps the memory alive, not the caller */
int64_t mg_store_minimum(int32_t n_layers, const mg_store_layer *layers, const uint8_t *keep);      /* smallest budget; keep: as below, or NULL */
const uint8_t *mg_store_map(const mg_store *s);                             /* the whole file */

/* A pass over all layers begins. MG_OK, or MG_E_FETCH if the file is no longer the one that was opened, or in a forked child. */
int mg_store_pass(mg_store *s, int32_t n_tokens);
/* A pass that goes layer by layer over several groups of tokens: until the last group of a layer, more is 1. */
void mg_store_more(mg_store *s, int more);
/* After the pass: MG_E_FETCH if the mapping was touched where the file is gone, so that results are void. */
int mg_store_check(mg_store *s);

/* Asks for those of n experts whose state[i] is MG_ABSENT (0). Each that is accepted is pinned until released, and its state
 * becomes MG_READY with records[i] set, or MG_LOADING. When there is no room the rest stay MG_ABSENT: compute what is ready,
 * release it, ask again. uses: tokens per expert on the first call for this layer and group, NULL afterwards.
 * Returns how many are still MG_ABSENT. */
int mg_store_request(mg_store *s, int32_t layer, int32_t n, const int32_t *experts, const int32_t *uses, const uint8_t **records,
                     uint8_t *state);
/* Blocks until a loading one is ready (its state and record are set), or an absent one is worth asking for (again).
 * MG_OK, MG_E_CANCEL, or MG_E_FETCH (mg_store_error tells). */
int mg_store_wait(mg_store *s, int32_t layer, int32_t n, const int32_t *experts, const uint8_t **records, uint8_t *state);
/* Unpins those of which[m] (indices; NULL: all n) that are loading or ready; their state becomes MG_DONE, which the calls above
 * pass over. A read that has not begun is dropped. */
void mg_store_release(mg_store *s, int32_t layer, int32_t m, const int32_t *which, const int32_t *experts, uint8_t *state);
/* Guesses what a later layer will need, most likely first. Takes what fits; dropped unread when that layer asks for others. */
void mg_store_predict(mg_store *s, int32_t layer, int32_t n, const int32_t *experts);

/* Of a cycle: the records that come after `layer` are queued in their order, as many as there is room for. */
void mg_store_next(mg_store *s, int32_t layer);

/* Usage history: uses [records over all layers], then keep the `per_layer` most used of each layer for good, as far as they fit.
 * Returns how many are kept. Before the first pass. */
int32_t mg_store_seed(mg_store *s, const double *uses, int32_t per_layer);
void mg_store_warm(mg_store *s);              /* fills the free budget in the background, most used first */
int64_t mg_store_warming(mg_store *s);        /* records that the warm-up still has to read */
/* Uses of each record in all passes, without the seed [records over all layers]. */
void mg_store_uses(mg_store *s, double *out);

/* Reads a range of the file to `dst` (from mg_store_alloc, 16 KiB aligned, as is offset), or into the page cache if dst is NULL;
 * all I/O threads work on it. MG_OK, MG_E_CANCEL, MG_E_FETCH. */
int mg_store_load(mg_store *s, int64_t offset, int64_t nbytes, void *dst);
void *mg_store_alloc(mg_store *s, int64_t nbytes);                          /* freed with the store */
/* Rows of a looked-up table: brings their pages in, so that a read does not fault; forgets old ones beyond 16 MiB under a budget.
 * MG_OK, MG_E_CANCEL, MG_E_FETCH. */
int mg_store_rows(mg_store *s, int64_t offset, int64_t row_bytes, int32_t n, const int32_t *rows);

/* Between passes. Evicts at once down to `budget`. MG_OK, MG_E_CANCEL, or MG_E_NOMEM outside minimum..max_budget. */
int mg_store_set_budget(mg_store *s, int64_t budget);
/* Between passes. All records go, kept ones too, until they are wanted again. MG_OK, MG_E_CANCEL. */
int mg_store_empty(mg_store *s);
void mg_store_counters(mg_store *s, mg_counters *out);
void mg_store_error(mg_store *s, mg_io_error *out);                         /* of the last MG_E_FETCH */

#endif
