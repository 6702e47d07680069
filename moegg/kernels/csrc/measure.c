/* measure.c - loops that reach a machine's limits: reading memory once, int8 dot products and float multiply-adds without memory.
 *
 * All are split over the pool as the engine's work is. The loops of a level use the instructions of its kernels.
 */
#include "measure.h"
#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* --- reading ------------------------------------------------------------------------------------------------------------ */

enum { LINE = 8, CHUNK_LINES = 1 << 14 };       /* words per cache line of 64 bytes; a chunk is 1 MiB */
typedef struct { const uint64_t *data; int64_t ahead; uint64_t sum; } read_ctx;

static void read_task(void *ctx, int64_t begin, int64_t end, int worker) {
    read_ctx *c = ctx;
    const char *next = (const char *)(c->data + begin * LINE) + c->ahead;
    uint64_t s[LINE] = {0}, sum = 0;
    (void)worker;
    if (c->ahead)
        for (const uint64_t *p = c->data + begin * LINE; p < c->data + end * LINE; p += LINE, next += 64) {
            __builtin_prefetch(next);
            for (int i = 0; i < LINE; i++) s[i] ^= p[i];
        }
    else
        for (const uint64_t *p = c->data + begin * LINE; p < c->data + end * LINE; p += LINE)
            for (int i = 0; i < LINE; i++) s[i] ^= p[i];
    for (int i = 0; i < LINE; i++) sum ^= s[i];
    __atomic_fetch_xor(&c->sum, sum, __ATOMIC_RELAXED);
}

uint64_t mg_measure_read(mg_pool *p, const void *data, int64_t nbytes, int64_t ahead) {
    read_ctx c = {data, ahead, 0};
    mg_pool_run(p, read_task, &c, nbytes / 64, CHUNK_LINES);
    return c.sum;
}

/* --- int8 --------------------------------------------------------------------------------------------------------------- */

/* Independent chains hide the latency; they start from different values, so that no compiler makes them one. */
enum { STEPS = 4096, CHAINS = 12 };
#define EACH _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++)

static int32_t int8_generic(int32_t seed) {
    int8_t a[16], b[16];
    int32_t s[CHAINS] = {0}, sum = 0;
    for (int i = 0; i < 16; i++) { a[i] = (int8_t)(seed + i); b[i] = (int8_t)(seed - i); }
    for (int n = 0; n < STEPS; n++)
        EACH {
            __asm__("" : "+m"(a));              /* the product is not the same again, as far as the compiler knows */
            for (int k = 0; k < 16; k++) s[i] += a[k] * b[k];
        }
    EACH sum ^= s[i];
    return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) static int32_t int8_avx512(int32_t seed) {
    __m512i s[CHAINS], a = _mm512_set1_epi32(seed), sum = a;
    EACH s[i] = _mm512_set1_epi32(i);
    for (int n = 0; n < STEPS; n++) EACH s[i] = _mm512_dpbusd_epi32(s[i], a, a);
    EACH sum = _mm512_xor_si512(sum, s[i]);
    return _mm_cvtsi128_si32(_mm512_castsi512_si128(sum));
}

__attribute__((target("avx2,avxvnni"))) static int32_t int8_avxvnni(int32_t seed) {
    __m256i s[CHAINS], a = _mm256_set1_epi32(seed), sum = a;
    EACH s[i] = _mm256_set1_epi32(i);
    for (int n = 0; n < STEPS; n++) EACH s[i] = _mm256_dpbusd_avx_epi32(s[i], a, a);
    EACH sum = _mm256_xor_si256(sum, s[i]);
    return _mm_cvtsi128_si32(_mm256_castsi256_si128(sum));
}

/* The multiplications alone: additions have ports of their own. */
__attribute__((target("avx2"))) static int32_t int8_avx2(int32_t seed) {
    __m256i s[CHAINS], a = _mm256_set1_epi32(seed), sum = a;
    EACH s[i] = _mm256_set1_epi32(i);
    for (int n = 0; n < STEPS; n++) EACH s[i] = _mm256_maddubs_epi16(s[i], a);
    EACH sum = _mm256_xor_si256(sum, s[i]);
    return _mm_cvtsi128_si32(_mm256_castsi256_si128(sum));
}
#elif defined(__aarch64__)
static int32_t int8_neon(int32_t seed) {
    int16x8_t s[CHAINS], sum = vdupq_n_s16(0);
    int8x16_t a = vdupq_n_s8((int8_t)seed);
    EACH s[i] = vdupq_n_s16((int16_t)i);
    for (int n = 0; n < STEPS; n++)
        EACH s[i] = vmlal_high_s8(vmlal_s8(s[i], vget_low_s8(a), vget_low_s8(a)), a, a);
    EACH sum = veorq_s16(sum, s[i]);
    return vgetq_lane_s16(sum, 0);
}

#if !defined(__clang__) || __clang_major__ >= 16        /* older ones have the intrinsics for one fixed CPU only */
#ifdef __clang__
#define WITH(feature) __attribute__((target(feature)))
#else
#define WITH(feature) __attribute__((target("arch=armv8.2-a+" feature)))
#endif
#define INT8_ARM(name, feature, dot)                                              \
    WITH(feature) static int32_t int8_##name(int32_t seed) {                      \
        int32x4_t s[CHAINS], sum = vdupq_n_s32(0);                                \
        int8x16_t a = vdupq_n_s8((int8_t)seed);                                   \
        EACH s[i] = vdupq_n_s32(i);                                               \
        for (int n = 0; n < STEPS; n++) EACH s[i] = dot(s[i], a, a);              \
        EACH sum = veorq_s32(sum, s[i]);                                          \
        return vgetq_lane_s32(sum, 0);                                            \
    }
INT8_ARM(dotprod, "dotprod", vdotq_s32)
INT8_ARM(i8mm, "i8mm", vmmlaq_s32)
#define ARM_DOT
#endif
#endif

/* --- float ---------------------------------------------------------------------------------------------------------------- */

/* s = s * a + b with |a| < 1 stays an ordinary number. */
static int32_t fma_generic(int32_t seed) {
    float s[CHAINS], sum = 0;
    EACH s[i] = (float)(seed + i);
    for (int n = 0; n < STEPS; n++) EACH s[i] = fmaf(s[i], 0.5f, 1.0f);
    EACH sum += s[i];
    return (int32_t)sum;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static int32_t fma_avx512(int32_t seed) {
    __m512 s[CHAINS], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f), sum = b;
    EACH s[i] = _mm512_set1_ps((float)(seed + i));
    for (int n = 0; n < STEPS; n++) EACH s[i] = _mm512_fmadd_ps(s[i], a, b);
    EACH sum = _mm512_add_ps(sum, s[i]);
    return _mm_cvtss_si32(_mm512_castps512_ps128(sum));
}

__attribute__((target("avx2,fma"))) static int32_t fma_avx2(int32_t seed) {
    __m256 s[CHAINS], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f), sum = b;
    EACH s[i] = _mm256_set1_ps((float)(seed + i));
    for (int n = 0; n < STEPS; n++) EACH s[i] = _mm256_fmadd_ps(s[i], a, b);
    EACH sum = _mm256_add_ps(sum, s[i]);
    return _mm_cvtss_si32(_mm256_castps256_ps128(sum));
}
#elif defined(__aarch64__)
static int32_t fma_neon(int32_t seed) {
    float32x4_t s[CHAINS], a = vdupq_n_f32(0.5f), b = vdupq_n_f32(1.0f), sum = b;
    EACH s[i] = vdupq_n_f32((float)(seed + i));
    for (int n = 0; n < STEPS; n++) EACH s[i] = vfmaq_f32(b, s[i], a);
    EACH sum = vaddq_f32(sum, s[i]);
    return (int32_t)vgetq_lane_f32(sum, 0);
}
#endif

/* --- both ----------------------------------------------------------------------------------------------------------------- */

typedef struct { int64_t ops; int32_t (*loop)(int32_t seed); } loop;                                /* ops: per chain and step */
static const struct { const char *level; loop int8, fma; } LEVELS[] = {         /* a level without a row counts as generic */
    {"generic", {2 * 16, int8_generic}, {2, fma_generic}},
#if defined(__x86_64__)
    {"avx2", {2 * 32, int8_avx2}, {2 * 8, fma_avx2}},
    {"avxvnni", {2 * 32, int8_avxvnni}, {2 * 8, fma_avx2}},
    {"avx512", {2 * 64, int8_avx512}, {2 * 16, fma_avx512}},
#elif defined(__aarch64__)
    {"neon", {2 * 16, int8_neon}, {2 * 4, fma_neon}},
#ifdef ARM_DOT
    {"dotprod", {2 * 16, int8_dotprod}, {2 * 4, fma_neon}},
    {"i8mm", {2 * 32, int8_i8mm}, {2 * 4, fma_neon}},
#else
    {"dotprod", {2 * 16, int8_neon}, {2 * 4, fma_neon}},
    {"i8mm", {2 * 16, int8_neon}, {2 * 4, fma_neon}},
#endif
#endif
};

typedef struct { int32_t (*loop)(int32_t); int32_t sink; } loop_ctx;

static void loop_task(void *ctx, int64_t begin, int64_t end, int worker) {
    loop_ctx *c = ctx;
    int32_t sum = 0;
    (void)worker;
    for (int64_t i = begin; i < end; i++) sum ^= c->loop((int32_t)i);
    __atomic_fetch_xor(&c->sink, sum, __ATOMIC_RELAXED);
}

static int64_t run(mg_pool *p, const loop *l, int64_t items) {
    loop_ctx c = {l->loop, 0};
    mg_pool_run(p, loop_task, &c, items, 1);
    return items * STEPS * CHAINS * l->ops;
}

static int in_force(void) {
    int found = 0;
    for (size_t i = 1; i < sizeof LEVELS / sizeof LEVELS[0]; i++)
        if (!strcmp(LEVELS[i].level, mg_level_name())) found = (int)i;
    return found;
}

int64_t mg_measure_int8(mg_pool *p, int64_t items) { return run(p, &LEVELS[in_force()].int8, items); }
int64_t mg_measure_fma(mg_pool *p, int64_t items) { return run(p, &LEVELS[in_force()].fma, items); }
