/* store_stress.c - the expert store under load, for sanitizers: make tsan. Exits 0, or says what was wrong.
 *
 * Records of two sizes hold words that only their own layer, expert and place have. An owner runs passes of random unions in waves,
 * with guesses, budget changes and injected faults; a pool of threads reads every record while it is pinned.
 */
#include "store.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 5, EXPERTS = 24, TOP_K = 3, THREADS = 8 };
static const int64_t record_bytes[2] = {150000, 70004};
static atomic_int wrong, calls;
static int faults;

static uint64_t word_of(int layer, int expert, int64_t at) {
    return ((uint64_t)(layer * 1000 + expert + 1) * 0x9E3779B97F4A7C15u) ^ ((uint64_t)at * 0xD1B54A32D192ED03u);
}

static uint32_t state = 12345;
static uint32_t rnd(uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static int64_t hook(void *ctx, int fd, void *buf, int64_t nbytes, int64_t offset) {
    (void)ctx;
    const int call = atomic_fetch_add(&calls, 1);
    if (faults && call % 13 == 3) return -EINTR;
    if (faults && call % 17 == 5) return -EIO;
    if (!buf) return 0;
    const ssize_t n = pread(fd, buf, (size_t)nbytes, offset);
    return n < 0 ? -errno : faults && call % 11 == 7 ? (n + 2) / 3 : n;
}

typedef struct { const mg_store_layer *layer; int index; const int32_t *experts; const uint8_t **records; const int32_t *which; } check_ctx;

static void check(void *arg, int64_t begin, int64_t end, int worker) {
    const check_ctx *c = arg;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int i = c->which[k / 4];
        const int64_t words = c->layer->record_bytes / 8, from = words * (k % 4) / 4, to = words * (k % 4 + 1) / 4;
        for (int64_t w = from; w < to; w++) {
            uint64_t got;
            memcpy(&got, c->records[i] + 8 * w, 8);
            if (got != word_of(c->index, c->experts[i], w)) {
                atomic_fetch_add(&wrong, 1);
                break;
            }
        }
    }
}

static int one_layer(mg_store *s, mg_pool *pool, const mg_store_layer *l, int index, int n_want) {
    int32_t experts[EXPERTS], uses[EXPERTS], which[EXPERTS];
    const uint8_t *records[EXPERTS];
    uint8_t st[EXPERTS] = {0};
    int n = 0, first = 1, status = MG_OK;
    for (int x = 0; x < EXPERTS; x++)
        if ((int)rnd(EXPERTS) < n_want) {
            experts[n] = x;
            uses[n++] = 1 + (int)rnd(3);
        }
    for (int left = n; left; ) {
        int m = 0, absent = 0;
        for (int i = 0; i < n; i++) absent += st[i] == MG_ABSENT;
        if (absent) mg_store_request(s, index, n, experts, first ? uses : NULL, records, st);
        first = 0;
        for (int i = 0; i < n; i++)
            if (st[i] == MG_READY) which[m++] = i;
        if (!m && (status = mg_store_wait(s, index, n, experts, records, st)) != MG_OK) break;
        check_ctx c = {l, index, experts, records, which};
        mg_pool_run(pool, check, &c, 4 * m, 1);
        mg_store_release(s, index, m, which, experts, st);
        left -= m;
    }
    if (status != MG_OK) mg_store_release(s, index, n, NULL, experts, st);
    return status;
}

static int run(const char *path, const mg_store_layer *layers, int mode, int inject, int passes) {
    struct stat st;
    stat(path, &st);
    int32_t cancel = 0;
    const int64_t least = mg_store_minimum(LAYERS, layers, NULL);
    mg_store_config c = {.n_layers = LAYERS, .layers = layers, .budget = least, .max_budget = 6 * least, .n_threads = 4,
                         .min_part = 16384, .max_part = 65536, .half_life = 64, .copy = mode == 2, .cancel = &cancel};
    c.file = (mg_file_config){.direct = mode == 1, .exact = 1, .hook = inject ? hook : NULL};
    const int64_t identity[4] = {st.st_dev, st.st_ino, st.st_size, (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
    c.file.n_parts = 1;
    c.file.paths = &path;
    c.file.identity = identity;
    mg_io_error error;
    mg_counters n;
    faults = inject;
    mg_store *s = mg_store_open(&c, &error);
    mg_pool *pool = mg_pool_new(THREADS);
    if (!s || !pool) { fprintf(stderr, "open: kind %d errno %d\n", error.kind, error.os_errno); return 1; }
    int failed = 0, cancels = 0;
    for (int pass = 0; pass < passes; pass++) {
        const int scan = pass % 4 == 3;
        if (mg_store_pass(s, scan ? 16 : 1) != MG_OK) { fprintf(stderr, "pass\n"); return 1; }
        if (pass % 5 == 4) {
            const int64_t budget = least * (1 + rnd(6));
            if (mg_store_set_budget(s, budget) != MG_OK) { fprintf(stderr, "budget\n"); return 1; }
            mg_store_counters(s, &n);
            if (n.cache_bytes > budget) { fprintf(stderr, "cache over budget after the change\n"); return 1; }
        }
        if (pass == 2) mg_store_warm(s);
        for (int l = 0; l < LAYERS; l++) {
            if (pass % 7 == 6 && l == 2) __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
            const int status = one_layer(s, pool, &layers[l], l, scan ? EXPERTS : TOP_K + (int)rnd(4));
            __atomic_store_n(&cancel, 0, __ATOMIC_RELAXED);
            failed += status == MG_E_FETCH;
            cancels += status == MG_E_CANCEL;
            if (status == MG_E_FETCH && !inject) { mg_store_error(s, &error); fprintf(stderr, "fetch: kind %d\n", error.kind); return 1; }
            int32_t guess[4];
            for (int i = 0; i < 4; i++) guess[i] = (int32_t)rnd(EXPERTS);
            mg_store_predict(s, (l + 1) % LAYERS, 4, guess);
        }
        mg_store_counters(s, &n);
        if (n.cache_bytes > n.budget) { fprintf(stderr, "cache over budget\n"); return 1; }
    }
    mg_store_counters(s, &n);
    printf("mode %d faults %d: hits %lld misses %lld reads %lld retries %lld evictions %lld wasted %lld failed %d cancelled %d is_direct %lld\n",
           mode, inject, (long long)n.hits, (long long)n.misses, (long long)n.reads, (long long)n.retries, (long long)n.evictions,
           (long long)n.wasted, failed, cancels, (long long)n.direct);
    mg_pool_free(pool);
    mg_store_close(s);
    return atomic_load(&wrong) != 0;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "store_stress.tmp";
    const int passes = argc > 2 ? atoi(argv[2]) : 60;
    mg_store_layer layers[LAYERS];
    int32_t slot[EXPERTS];
    int64_t end = 16384;
    for (int x = 0; x < EXPERTS; x++) slot[x] = (x * 7) % EXPERTS;
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) { perror(path); return 1; }
    for (int l = 0; l < LAYERS; l++) {
        const int64_t size = record_bytes[l % 2], stride = (size + 16383) / 16384 * 16384;
        layers[l] = (mg_store_layer){EXPERTS, TOP_K, end, stride, size, slot};
        uint64_t *buf = calloc(1, (size_t)stride);
        for (int x = 0; x < EXPERTS; x++) {
            for (int64_t w = 0; w < size / 8; w++) buf[w] = word_of(l, x, w);
            if (pwrite(fd, buf, (size_t)stride, end + stride * slot[x]) != stride) { perror("write"); return 1; }
        }
        free(buf);
        end += stride * EXPERTS;
    }
    fsync(fd);
    close(fd);
    int bad = 0;
    for (int mode = 0; mode < 3; mode++)
        for (int inject = 0; inject < 2; inject++) bad |= run(path, layers, mode, inject, passes);
    unlink(path);
    if (atomic_load(&wrong)) fprintf(stderr, "%d wrong records\n", atomic_load(&wrong));
    return bad;
}
