/* slots.c - see slots.h. */
#include "slots.h"
#include <stdlib.h>
#include <sys/mman.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif
#ifdef __APPLE__
#define GIVE_BACK MADV_FREE       /* MADV_DONTNEED is no more than a hint there */
#else
#define GIVE_BACK MADV_DONTNEED
#endif
#define HUGE_BYTES ((int64_t)2 << 20)

typedef struct {
    uint8_t *base;
    int64_t size;
    int32_t count, fresh;         /* slots from `fresh` on were never used */
    int32_t *warm, *cold;         /* free slots with and without memory */
    int32_t n_warm, n_cold;
} size_class;

struct mg_slots {
    int32_t n;
    int64_t held;
    size_class c[];
};

static int64_t whole(int64_t nbytes) { return (nbytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES; }

void *mg_big_alloc(int64_t nbytes) {
    const int64_t size = whole(nbytes);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint8_t *at = mmap(NULL, (size_t)(size + HUGE_BYTES), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) return NULL;
    const int64_t skip = whole((int64_t)(uintptr_t)at) - (int64_t)(uintptr_t)at;
    if (skip) munmap(at, (size_t)skip);
    if (HUGE_BYTES - skip) munmap(at + skip + size, (size_t)(HUGE_BYTES - skip));
#ifdef MADV_HUGEPAGE
    madvise(at + skip, (size_t)size, MADV_HUGEPAGE);
#endif
    return at + skip;
}

void mg_big_free(void *at, int64_t nbytes) {
    if (at) munmap(at, (size_t)whole(nbytes));
}

mg_slots *mg_slots_new(int32_t n_classes, const int64_t *sizes, const int32_t *counts) {
    mg_slots *s = calloc(1, sizeof *s + (size_t)n_classes * sizeof(size_class));
    if (!s) return NULL;
    s->n = n_classes;
    for (int32_t i = 0; i < n_classes; i++) {
        size_class *c = &s->c[i];
        c->size = sizes[i];
        c->count = counts[i];
        c->warm = malloc((size_t)counts[i] * sizeof *c->warm);
        c->cold = malloc((size_t)counts[i] * sizeof *c->cold);
        c->base = mg_big_alloc(sizes[i] * counts[i]);
        if (!c->warm || !c->cold || !c->base) {
            mg_slots_free(s);
            return NULL;
        }
    }
    return s;
}

void mg_slots_free(mg_slots *s) {
    if (!s) return;
    for (int32_t i = 0; i < s->n; i++) {
        mg_big_free(s->c[i].base, s->c[i].size * s->c[i].count);
        free(s->c[i].warm);
        free(s->c[i].cold);
    }
    free(s);
}

int32_t mg_slots_take(mg_slots *s, int32_t cls, int64_t limit) {
    size_class *c = &s->c[cls];
    if (c->n_warm) return c->warm[--c->n_warm];
    mg_slots_trim(s, limit - c->size);
    s->held += c->size;
    return c->n_cold ? c->cold[--c->n_cold] : c->fresh++;
}

void mg_slots_give(mg_slots *s, int32_t cls, int32_t slot) { s->c[cls].warm[s->c[cls].n_warm++] = slot; }

uint8_t *mg_slots_at(const mg_slots *s, int32_t cls, int32_t slot) { return s->c[cls].base + s->c[cls].size * slot; }

int64_t mg_slots_held(const mg_slots *s) { return s->held; }

void mg_slots_trim(mg_slots *s, int64_t limit) {
    for (int32_t i = 0; i < s->n; i++) {
        size_class *c = &s->c[i];
        while (s->held > limit && c->n_warm) {
            const int32_t slot = c->warm[--c->n_warm];
            madvise(c->base + c->size * slot, (size_t)c->size, GIVE_BACK);
            c->cold[c->n_cold++] = slot;
            s->held -= c->size;
        }
    }
}
