/* kernels.h - the contract between the quant kernels, the thread pool, the op kernels and the executor.
 *
 * Pure C11, no Python.h, no malloc in kernels. Callers have checked shapes; kernels do not fail. Row-major unless said.
 * A weight matrix [rows, cols] is INTERLEAVED (moegg/quants.py): groups of MG_GROUP rows; rows past the end are zero.
 * Exactness: every output lane is one weight row; blocks are accumulated in K order with one fmaf per term, integer sums inside
 * a block are exact. So a result has the same bits for any number of activation rows, threads and any CPU level.
 */
#ifndef MOEGG_KERNELS_H
#define MOEGG_KERNELS_H
#include <stddef.h>
#include <stdint.h>

#define MG_GROUP 16          /* rows of one interleaved group = lanes of one kernel call */
#define MG_QUANT_MAX 128     /* quant ids are below this */

/* Activation formats. F32: cols floats, padded with zeros to an even count.
 * A8 (cols a multiple of 32): int8 q[cols] in -127..127, then from the next multiple of 64 bytes one mg_a8 per 32 elements. */
enum { MG_ACT_F32 = 0, MG_ACT_A8 = 1 };

typedef struct {
    int id;
    const char *name;
    int block_elems, block_bytes, act;
    const char *units;       /* "2x1 4x4": the cut of a block, see quants.def */
} mg_quant;

const mg_quant *mg_quant_get(int id);                                  /* NULL for an unknown id */
size_t mg_act_bytes(int act, int64_t cols);                            /* bytes of one activation row, multiple of 64 */
size_t mg_group_bytes(int quant, int64_t cols);                        /* bytes of one interleaved 16-row group */
size_t mg_row_bytes(int quant, int64_t cols);                          /* bytes of one row-major row */

static inline size_t mg_align64(size_t n) { return (n + 63) & ~(size_t)63; }
typedef struct {
    float d, ds;             /* x = d * q; ds = d * s */
    int32_t s;               /* exact sum of the 32 q */
    int16_t half[2];         /* and of the first and last 16 */
} mg_a8;
static inline int8_t *mg_a8_q(const void *a) { return (int8_t *)a; }
static inline mg_a8 *mg_a8_blocks(const void *a, int64_t cols) { return (mg_a8 *)((char *)a + mg_align64(cols)); }

/* y[i][0..15] = W[16 rows] . a[i] for i < n; y is overwritten. w: start of a group, any alignment; a[i]: activation rows. */
typedef void (*mg_group_fn)(const uint8_t *w, int64_t cols, const void *const *a, int n, float *const *y);
/* One float row to one activation row (padding included). */
typedef void (*mg_act_fn)(const float *x, int64_t cols, void *dst);

typedef struct {
    mg_group_fn group[MG_QUANT_MAX];
    mg_act_fn act[2];
} mg_kernel_table;
extern mg_kernel_table mg_kernels;                                     /* filled by mg_select */

/* Row-major rows to and from float; the plain definition of each format's values. */
void mg_dequant_row(int quant, const void *src, float *dst, int64_t cols);
/* MG_OK or MG_E_QUANT. search: also where plain rounding exists look for the scale of least weighted squared error; k-quants always
 * do. worth: [cols] weights of the columns, or NULL. */
int  mg_quant_row(int quant, const float *src, void *dst, int64_t cols, int search, const float *worth);
/* One row of an interleaved matrix to float (a tied embedding). */
void mg_dequant_interleaved_row(int quant, const void *matrix, int64_t row, int64_t cols, float *dst);
/* rows row-major -> interleaved (whole groups, zero padded), and back. */
void mg_interleave(int quant, const void *src, int64_t rows, int64_t cols, void *dst);
void mg_deinterleave(int quant, const void *src, int64_t rows, int64_t cols, void *dst);

/* Status codes; moegg/kernels maps them to errors. */
enum {
    MG_OK = 0,
    MG_E_QUANT = -1,      /* unknown quant id, or no quantiser for it */
    MG_E_LEVEL = -2,      /* the CPU level is unknown or above what this host has */
    MG_E_NOMEM = -3,      /* allocation failed */
    MG_E_CANCEL = -4,     /* the cancel flag was set between two ops */
    MG_E_FETCH = -5,      /* an expert record could not be read */
};

/* CPU levels, lowest first: x86 generic < avx2 < avxvnni < avx512; Arm generic < neon < dotprod < i8mm. */
const char *mg_level_name(void);                                       /* the level in force */
const char *mg_host_level_name(void);                                  /* the highest level of this host */
int mg_select(const char *level);                                      /* NULL: the highest; MG_E_LEVEL if not available */
int mg_levels(const char **names, int max);                            /* levels usable on this host, lowest first */

/* Thread pool (pool.c). One owner thread calls; workers are created on first use and again after a fork. Tasks must not call it.
 * Beside busy neighbours it may leave some workers out for a while; results cannot depend on that. */
typedef struct mg_pool mg_pool;
typedef void (*mg_task_fn)(void *ctx, int64_t begin, int64_t end, int worker);   /* worker 0 = the caller */
mg_pool *mg_pool_new(int n_threads);                                   /* the caller included; NULL on failure */
void mg_pool_free(mg_pool *p);                                         /* NULL is ignored */
int mg_pool_threads(const mg_pool *p);
void mg_pool_set_spin(mg_pool *p, int64_t us);                         /* how long a thread looks for work before it sleeps */
/* Runs fn over [0, n_items) in chunks claimed by the workers, end - begin <= chunk; returns when all is done. chunk >= 1. */
void mg_pool_run(mg_pool *p, mg_task_fn fn, void *ctx, int64_t n_items, int64_t chunk);

/* The plain references (vec_generic.c) and the faster levels; NULL entries fall through to the level below. */
extern const mg_kernel_table mg_table_generic;
#if defined(__x86_64__) || defined(_M_X64)
extern const mg_kernel_table mg_table_avx2, mg_table_avxvnni, mg_table_avx512;
#elif defined(__aarch64__)
extern const mg_kernel_table mg_table_neon, mg_table_dotprod, mg_table_i8mm;
#endif

#endif
