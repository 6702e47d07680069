/* policy.c - see policy.h. Two min-heaps of records that may be evicted, ordered by score per byte: [NOW], and [AHEAD] for those
 * that a layer still to come in this pass is expected to use.
 *
 * Scores are not decayed one by one: instead a use counts ever more (`unit` doubles every half_life tokens), which orders the
 * records just the same; when `unit` gets large everything is divided by it.
 */
#include "policy.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNIT_MAX 1e100
#define HYSTERESIS 1.25
enum { NOW = 0, AHEAD = 1, NO_HEAP = -1 };

typedef struct { double key; int32_t id; } ranked;

typedef struct {
    double score, before;    /* decayed uses times unit: now, and before the pass that used it last */
    uint32_t pass;           /* that pass */
    int32_t layer, pos;      /* pos: place in its heap */
    int32_t pins;
    int8_t state, heap, ahead, kept;
} entry;

struct mg_policy {
    int32_t n_layers, count;
    int32_t *first;          /* [n_layers + 1] id of a layer's expert 0 */
    int64_t *bytes;          /* [n_layers] */
    double *per_byte;        /* [n_layers] */
    entry *e;                /* [count] */
    ranked *heap[2];         /* [count] each */
    int32_t size[2];
    int64_t loose[2];        /* bytes in each heap */
    ranked *sorted;          /* [count] scratch of warm_order */
    int32_t *evicted;        /* [count] */
    int32_t n_evicted;
    int64_t budget, minimum, used, kept, kept_used, total;      /* bytes; kept: of what shall stay, kept_used: in memory; total: of all */
    double unit, growth;     /* growth: doublings of unit per token */
    uint32_t pass;
    int scan;
};

int64_t mg_policy_minimum(const mg_policy_config *c) {
    int64_t most = 0, kept = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const int64_t n = 2 * (int64_t)c->top_k[i] * c->record_bytes[i], all = c->n_experts[i] * c->record_bytes[i];
        const int64_t need = n < all ? n : all;
        if (c->keep && c->keep[i]) kept += need;
        else most = need > most ? need : most;
    }
    return kept + most;
}

mg_policy *mg_policy_new(const mg_policy_config *c) {
    const int64_t minimum = mg_policy_minimum(c);
    if (c->budget < minimum) return NULL;
    mg_policy *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->n_layers = c->n_layers;
    for (int32_t i = 0; i < c->n_layers; i++) p->count += c->n_experts[i];
    const size_t n = (size_t)p->count + 1;
    p->first = malloc((size_t)(c->n_layers + 1) * sizeof *p->first);
    p->bytes = malloc((size_t)(c->n_layers + 1) * sizeof *p->bytes);
    p->per_byte = malloc((size_t)(c->n_layers + 1) * sizeof *p->per_byte);
    p->e = calloc(n, sizeof *p->e);
    p->evicted = malloc(n * sizeof *p->evicted);
    p->sorted = malloc(n * sizeof(ranked));
    for (int h = 0; h < 2; h++) p->heap[h] = malloc(n * sizeof(ranked));
    if (!p->first || !p->bytes || !p->per_byte || !p->e || !p->evicted || !p->sorted || !p->heap[0] || !p->heap[1]) {
        mg_policy_free(p);
        return NULL;
    }
    int32_t id = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        p->first[i] = id;
        p->bytes[i] = c->record_bytes[i];
        p->total += c->n_experts[i] * c->record_bytes[i];
        p->per_byte[i] = 1.0 / (double)c->record_bytes[i];
        const int8_t keep = c->keep && c->keep[i];
        for (int32_t x = 0; x < c->n_experts[i]; x++, id++) p->e[id] = (entry){.layer = i, .heap = NO_HEAP, .kept = keep};
        if (keep) p->kept += c->n_experts[i] * c->record_bytes[i];
    }
    p->first[c->n_layers] = id;
    p->budget = c->budget;
    p->minimum = minimum;
    p->unit = 1.0;
    p->growth = c->half_life > 0 ? 1.0 / c->half_life : 0.0;
    return p;
}

void mg_policy_free(mg_policy *p) {
    if (!p) return;
    free(p->first);
    free(p->bytes);
    free(p->per_byte);
    free(p->e);
    free(p->evicted);
    free(p->sorted);
    free(p->heap[0]);
    free(p->heap[1]);
    free(p);
}

int32_t mg_policy_count(const mg_policy *p) { return p->count; }
int32_t mg_policy_id(const mg_policy *p, int32_t layer, int32_t expert) { return p->first[layer] + expert; }
int32_t mg_policy_layer(const mg_policy *p, int32_t id) { return p->e[id].layer; }
int64_t mg_policy_used(const mg_policy *p) { return p->used; }
int64_t mg_policy_budget(const mg_policy *p) { return p->budget; }
int mg_policy_state(const mg_policy *p, int32_t id) { return p->e[id].state; }
int mg_policy_pinned(const mg_policy *p, int32_t id) { return p->e[id].pins > 0; }
double mg_policy_score(const mg_policy *p, int32_t id) { return p->e[id].score / p->unit; }

static int64_t bytes_of(const mg_policy *p, int32_t id) { return p->bytes[p->e[id].layer]; }
static double key_of(const mg_policy *p, int32_t id) { return p->e[id].score * p->per_byte[p->e[id].layer]; }

/* --- heaps -------------------------------------------------------------------------------------------------------------- */

static void put(mg_policy *p, int h, int32_t at, ranked r) {
    p->heap[h][at] = r;
    p->e[r.id].pos = at;
}

static void sift(mg_policy *p, int h, int32_t at, ranked r) {
    ranked *a = p->heap[h];
    const int32_t n = p->size[h];
    while (at > 0 && r.key < a[(at - 1) / 2].key) {
        put(p, h, at, a[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && a[child + 1].key < a[child].key) child++;
        if (r.key <= a[child].key) break;
        put(p, h, at, a[child]);
        at = child;
    }
    put(p, h, at, r);
}

static void push(mg_policy *p, int32_t id) {
    entry *e = &p->e[id];
    e->heap = e->ahead ? AHEAD : NOW;
    p->loose[e->heap] += bytes_of(p, id);
    p->size[e->heap]++;
    sift(p, e->heap, p->size[e->heap] - 1, (ranked){key_of(p, id), id});
}

static void take_out(mg_policy *p, int32_t id) {
    entry *e = &p->e[id];
    if (e->heap == NO_HEAP) return;
    const int h = e->heap;
    const int32_t last = --p->size[h];
    if (e->pos < last) sift(p, h, e->pos, p->heap[h][last]);
    e->heap = NO_HEAP;
    p->loose[h] -= bytes_of(p, id);
}

/* A ready record that nobody holds belongs into a heap, all others do not. */
static void settle(mg_policy *p, int32_t id) {
    entry *e = &p->e[id];
    take_out(p, id);
    if (e->state == MG_READY && !e->pins && !e->kept) push(p, id);
}

/* The bytes of a record that comes (1) or goes (-1). */
static void count(mg_policy *p, int32_t id, int sign) {
    p->used += sign * bytes_of(p, id);
    if (p->e[id].kept) p->kept_used += sign * bytes_of(p, id);
}

static void lose(mg_policy *p, int32_t id) {
    p->e[id].state = MG_ABSENT;
    p->e[id].ahead = 0;
    count(p, id, -1);
}

static void evict(mg_policy *p, int32_t id) {
    take_out(p, id);
    lose(p, id);
    p->evicted[p->n_evicted++] = id;
}

/* Of two records, one used in this scan and one still ahead of it, the latter is needed once for sure. It goes only if the other
 * was clearly more used before this scan (what the scan itself has counted so far says nothing about layers ahead), and not if it
 * belongs to the layer at hand, whose next group of tokens is about to come. */
static int32_t victim(const mg_policy *p, int now_only) {
    if (!p->size[AHEAD] || now_only) return p->heap[NOW][0].id;
    if (!p->size[NOW]) return p->heap[AHEAD][0].id;
    const ranked now = p->heap[NOW][0], ahead = p->heap[AHEAD][0];
    const entry *e = &p->e[now.id];
    const double before = (e->pass == p->pass ? e->before : e->score) * p->per_byte[e->layer];
    return p->scan && p->e[ahead.id].pass != p->pass && before > HYSTERESIS * ahead.key ? ahead.id : now.id;
}

static void evict_to(mg_policy *p, int64_t limit, int now_only) {
    p->n_evicted = 0;
    while (p->used > limit && p->size[NOW] + (now_only ? 0 : p->size[AHEAD])) evict(p, victim(p, now_only));
}

/* --- passes ------------------------------------------------------------------------------------------------------------- */

static void rescale(mg_policy *p) {
    const double by = 1.0 / p->unit;
    for (int32_t i = 0; i < p->count; i++) p->e[i].score *= by;
    for (int h = 0; h < 2; h++)
        for (int32_t i = 0; i < p->size[h]; i++) p->heap[h][i].key *= by;
    p->unit = 1.0;
}

/* Scans are long and rare, so moving every record between the heaps is affordable there. */
static void set_ahead(mg_policy *p, int ahead) {
    for (int32_t id = 0; id < p->count; id++) {
        entry *e = &p->e[id];
        if (e->state != MG_ABSENT && e->ahead != ahead) {
            e->ahead = (int8_t)ahead;
            settle(p, id);
        }
    }
}

void mg_policy_pass(mg_policy *p, int64_t n_tokens, int scan) {
    p->unit *= exp2(fmin(p->growth * (double)n_tokens, 300.0));
    if (p->unit > UNIT_MAX) rescale(p);
    if (scan || p->scan) set_ahead(p, scan);
    p->scan = scan;
    p->pass++;
}

void mg_policy_arrive(mg_policy *p, int32_t layer) {
    if (!p->size[AHEAD]) return;
    for (int32_t id = p->first[layer]; id < p->first[layer + 1]; id++) {
        if (!p->e[id].ahead) continue;
        p->e[id].ahead = 0;
        settle(p, id);
    }
}

void mg_policy_use(mg_policy *p, int32_t id, double uses, int again) {
    entry *e = &p->e[id];
    if (e->pass != p->pass) e->before = e->score;
    e->pass = p->pass;
    e->score += uses * p->unit;
    e->ahead = again != 0;
    if (e->heap != NO_HEAP) settle(p, id);
}

void mg_policy_pin(mg_policy *p, int32_t id) {
    if (p->e[id].pins++ == 0) take_out(p, id);
}

void mg_policy_unpin(mg_policy *p, int32_t id) {
    if (p->e[id].pins && --p->e[id].pins == 0) settle(p, id);
}

int32_t mg_policy_admit(mg_policy *p, int32_t id, int how) {
    const int64_t need = bytes_of(p, id);
    /* a guess takes no place from another one, nor from what a scan waits for */
    const int64_t may_go = how >= MG_ADMIT_FREE ? 0 : p->loose[NOW] + (how == MG_ADMIT_DEMAND ? p->loose[AHEAD] : 0);
    const int64_t others = how == MG_ADMIT_NEXT && !p->e[id].kept ? p->kept - p->kept_used : 0;
    if (p->used + others - may_go + need > p->budget) return -1;
    evict_to(p, p->budget - need, how == MG_ADMIT_GUESS);
    count(p, id, 1);
    p->e[id].state = MG_LOADING;
    p->e[id].ahead |= how == MG_ADMIT_GUESS;
    return p->n_evicted;
}

const int32_t *mg_policy_evicted(const mg_policy *p) { return p->evicted; }

void mg_policy_loaded(mg_policy *p, int32_t id) {
    p->e[id].state = MG_READY;
    settle(p, id);
}

void mg_policy_failed(mg_policy *p, int32_t id) { lose(p, id); }

void mg_policy_again(mg_policy *p, int32_t id) {
    take_out(p, id);
    p->e[id].state = MG_LOADING;
}

int32_t mg_policy_drop(mg_policy *p, int32_t id) {
    p->n_evicted = 0;
    if (p->e[id].heap != NO_HEAP) evict(p, id);
    return p->n_evicted;
}

int32_t mg_policy_drop_all(mg_policy *p) {
    p->n_evicted = 0;
    for (int32_t id = 0; id < p->count; id++)
        if (p->e[id].state == MG_READY && !p->e[id].pins) evict(p, id);
    return p->n_evicted;
}

int32_t mg_policy_set_budget(mg_policy *p, int64_t budget) {
    if (budget < p->minimum + p->kept) return -1;
    p->budget = budget;
    evict_to(p, budget, 0);
    return p->n_evicted;
}

int mg_policy_keep(mg_policy *p, int32_t id) {
    const int64_t bytes = bytes_of(p, id);
    if (p->e[id].kept) return 0;
    if (p->kept + bytes + p->minimum > p->budget) return -1;
    p->kept += bytes;
    if (p->e[id].state != MG_ABSENT) p->kept_used += bytes;
    p->e[id].kept = 1;
    settle(p, id);
    return 0;
}

void mg_policy_seed(mg_policy *p, int32_t id, double uses) {
    p->e[id].score = uses * p->unit;
    if (p->e[id].heap != NO_HEAP) settle(p, id);
}

static int by_key(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key) - (x->key > y->key) : (x->id > y->id) - (x->id < y->id);
}

int32_t mg_policy_warm_order(mg_policy *p, int32_t *out) {
    ranked *r = p->sorted;
    int32_t n = 0;
    int64_t room = p->budget;
    for (int32_t i = 0; i < p->count; i++) r[i] = (ranked){p->e[i].kept ? INFINITY : key_of(p, i), i};
    qsort(r, (size_t)p->count, sizeof *r, by_key);
    for (int32_t i = 0; i < p->count && room >= bytes_of(p, r[i].id); i++) {
        if (r[i].key <= 0 && p->total > p->budget) break;    /* never used: worth a read only if everything fits */
        room -= bytes_of(p, r[i].id);
        out[n++] = r[i].id;
    }
    return n;
}

/* --- replay ------------------------------------------------------------------------------------------------------------- */

static void unpin_all(mg_policy *p, int32_t layer, int32_t n, const int32_t *experts) {
    for (int32_t i = 0; i < n; i++) mg_policy_unpin(p, mg_policy_id(p, layer, experts[i]));
}

int32_t mg_policy_access(mg_policy *p, int32_t layer, int32_t n, const int32_t *experts, const int32_t *uses, uint8_t *hit) {
    int32_t hits = 0;
    mg_policy_arrive(p, layer);
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = mg_policy_id(p, layer, experts[i]);
        const int here = p->e[id].state == MG_READY;
        if (hit) hit[i] = (uint8_t)here;
        hits += here;
        if (here) mg_policy_pin(p, id);
        mg_policy_use(p, id, uses ? uses[i] : 1, 0);
    }
    if (p->scan) unpin_all(p, layer, n, experts);            /* a scan computes these first, then each as it comes */
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = mg_policy_id(p, layer, experts[i]);
        if (p->e[id].state != MG_ABSENT) continue;
        if (mg_policy_admit(p, id, MG_ADMIT_DEMAND) < 0) {   /* no room beside what is in use: that is computed and released */
            unpin_all(p, layer, n, experts);
            if (mg_policy_admit(p, id, MG_ADMIT_DEMAND) < 0) continue;
        }
        mg_policy_loaded(p, id);
        if (!p->scan) mg_policy_pin(p, id);
    }
    unpin_all(p, layer, n, experts);
    return hits;
}
