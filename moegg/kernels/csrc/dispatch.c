/* dispatch.c - the quant table, what this CPU can do, and the kernel table in force.
 *
 * mg_select starts from the plain C kernels and lays the faster levels over them, so a format without a fast kernel still works.
 * It must not run while kernels run.
 */
#include <string.h>

#include "kernels.h"
#include "ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

static const mg_quant QUANTS[MG_QUANT_MAX] = {
#define Q(id, name, elems, bytes, act, units, scales) [id] = {id, #name, elems, bytes, MG_ACT_##act, units},
#include "quants.def"
#undef Q
};

const mg_quant *mg_quant_get(int id) {
    return id >= 0 && id < MG_QUANT_MAX && QUANTS[id].name ? &QUANTS[id] : NULL;
}

size_t mg_act_bytes(int act, int64_t cols) {
    if (act == MG_ACT_F32) return mg_align64((size_t)(cols + (cols & 1)) * 4);
    return mg_align64(cols) + mg_align64(cols / 32 * sizeof(mg_a8));
}

size_t mg_row_bytes(int quant, int64_t cols) {
    return (size_t)(cols / QUANTS[quant].block_elems) * QUANTS[quant].block_bytes;
}

size_t mg_group_bytes(int quant, int64_t cols) {
    const size_t row = mg_row_bytes(quant, cols);
    return MG_GROUP * (QUANTS[quant].block_elems == 1 ? (row + 3) & ~(size_t)3 : row);  /* f16, bf16: whole units */
}

/* --- levels ----------------------------------------------------------------------------------------------------------- */

mg_kernel_table mg_kernels;

static int has_generic(void) { return 1; }

#if defined(__x86_64__)
/* __builtin_cpu_supports also asks the OS (xgetbv); f16c, which not every compiler names, has no register state of its own. */
static int has_avx2(void) {
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static int has_avxvnni(void) {
    unsigned a = 0, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
static int has_neon(void) { return 1; }
#if defined(__linux__)
static int has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; }        /* HWCAP_ASIMDDP */
static int has_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; }          /* HWCAP2_I8MM */
#elif defined(__APPLE__)
static int has(const char *feature) {
    int v = 0;
    size_t n = sizeof v;
    return sysctlbyname(feature, &v, &n, NULL, 0) == 0 && v;
}
static int has_dotprod(void) { return has("hw.optional.arm.FEAT_DotProd"); }
static int has_i8mm(void) { return has("hw.optional.arm.FEAT_I8MM"); }
#else
static int has_dotprod(void) { return 0; }
static int has_i8mm(void) { return 0; }
#endif
#endif

static const struct {
    const char *name;
    const mg_kernel_table *table;
    int (*usable)(void);
} LEVELS[] = {
    {"generic", &mg_table_generic, has_generic},
#if defined(__x86_64__)
    {"avx2", &mg_table_avx2, has_avx2},
    {"avxvnni", &mg_table_avxvnni, has_avxvnni},          /* not below avx512 on every CPU: a host's levels can have gaps */
    {"avx512", &mg_table_avx512, has_avx512},
#elif defined(__aarch64__)
    {"neon", &mg_table_neon, has_neon},
    {"dotprod", &mg_table_dotprod, has_dotprod},
    {"i8mm", &mg_table_i8mm, has_i8mm},
#endif
};
enum { N_LEVELS = sizeof LEVELS / sizeof LEVELS[0] };

static int in_force;

static int host_level(void) {
    int top = N_LEVELS - 1;
    while (!LEVELS[top].usable()) top--;
    return top;
}

const char *mg_level_name(void) { return LEVELS[in_force].name; }
const char *mg_host_level_name(void) { return LEVELS[host_level()].name; }

int mg_levels(const char **names, int max) {
    int n = 0;
    for (int i = 0; i < N_LEVELS && n < max; i++)
        if (LEVELS[i].usable()) names[n++] = LEVELS[i].name;
    return n;
}

int mg_select(const char *level) {
    int want = host_level();
    while (level && want >= 0 && strcmp(level, LEVELS[want].name)) want--;
    if (want < 0 || !LEVELS[want].usable()) return MG_E_LEVEL;
    mg_kernel_table t = *LEVELS[0].table;
    for (int l = 1; l <= want; l++) {
        if (!LEVELS[l].usable()) continue;
        for (int i = 0; i < MG_QUANT_MAX; i++)
            if (LEVELS[l].table->group[i]) t.group[i] = LEVELS[l].table->group[i];
        for (int i = 0; i < 2; i++)
            if (LEVELS[l].table->act[i]) t.act[i] = LEVELS[l].table->act[i];
    }
    mg_kernels = t;
    in_force = want;
    mg_ops_select(LEVELS[want].name);
    return MG_OK;
}
