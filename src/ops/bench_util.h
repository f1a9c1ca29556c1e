/* What the op benchmarks share: this machine's limits, measured in the same process before anything else, and one
 * line a shape: time, rates, and the share of the limit that binds it,
 *   share = max(bytes / read rate, multiply-adds / rate) / time.
 * "mem" streams from memory, "L2" re-reads what fits a core's second-level cache. Median of the runs, first discarded. */
#ifndef GM_OPS_BENCH_UTIL_H
#define GM_OPS_BENCH_UTIL_H

#include "base/mem.h"
#include "base/rng.h"
#include "device/device.h"
#include "ops/slice.h"
#include "ops/tensor.h"
#include "ops/variant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static int bu_threads;

/* With one thread the processor time is taken, so that other programs on the machine show less. */
static inline double bu_now(void)
{
    struct timespec t;
    clock_gettime(bu_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct bu_limits {
    double mem, l2;   /* bytes a second, all threads */
    double fma, bf16; /* multiply-adds a second, all threads; bf16 0 where there is no such instruction */
} bu_limits;

static gm_device *bu_dev;
static bu_limits bu_limit;
static volatile float bu_sink;

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static float bu_read(const float *p, int64_t n)
{
    __m256 s[8];
    for (int i = 0; i < 8; i++) s[i] = _mm256_setzero_ps();
    for (int64_t k = 0; k + 64 <= n; k += 64)
        for (int i = 0; i < 8; i++) s[i] = _mm256_add_ps(s[i], _mm256_loadu_ps(p + k + 8 * i));
    for (int i = 1; i < 8; i++) s[0] = _mm256_add_ps(s[0], s[i]);
    return _mm256_cvtss_f32(s[0]);
}

#define BU_12(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)

__attribute__((target("avx2,fma"))) static float bu_fma_avx2(int64_t n)
{
    __m256 sum = _mm256_setzero_ps();
    __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-9f);
#define DECLARE(i) __m256 s##i = _mm256_set1_ps(i);
#define STEP(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(s##i) : "x"(a), "x"(b));
#define ADD(i) sum = _mm256_add_ps(sum, s##i);
    BU_12(DECLARE)
    for (int64_t k = 0; k < n; k++) {
        BU_12(STEP)
    }
    BU_12(ADD)
#undef DECLARE
#undef STEP
#undef ADD
    float t[sizeof sum / 4];
    memcpy(t, &sum, sizeof t);
    return t[0];
}

__attribute__((target("avx512f"))) static float bu_fma_avx512(int64_t n)
{
    __m512 sum = _mm512_setzero_ps();
    __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-9f);
#define DECLARE(i) __m512 s##i = _mm512_set1_ps(i);
#define STEP(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(s##i) : "v"(a), "v"(b));
#define ADD(i) sum = _mm512_add_ps(sum, s##i);
    BU_12(DECLARE)
    for (int64_t k = 0; k < n; k++) {
        BU_12(STEP)
    }
    BU_12(ADD)
#undef DECLARE
#undef STEP
#undef ADD
    float t[sizeof sum / 4];
    memcpy(t, &sum, sizeof t);
    return t[0];
}

__attribute__((target("avx512f,avx512bf16"))) static float bu_bf16_avx512(int64_t n)
{
    __m512 sum = _mm512_setzero_ps();
    __m512i a = _mm512_set1_epi32(0x3F003F00), b = a;
#define DECLARE(i) __m512 s##i = _mm512_set1_ps(i);
#define STEP(i) __asm__ volatile("vdpbf16ps %2, %1, %0" : "+v"(s##i) : "v"(a), "v"(b));
#define ADD(i) sum = _mm512_add_ps(sum, s##i);
    BU_12(DECLARE)
    for (int64_t k = 0; k < n; k++) {
        BU_12(STEP)
    }
    BU_12(ADD)
#undef DECLARE
#undef STEP
#undef ADD
    float t[sizeof sum / 4];
    memcpy(t, &sum, sizeof t);
    return t[0];
}

#endif

enum { BU_READ_MEM, BU_READ_L2, BU_FMA, BU_BF16 };
enum { BU_L2_FLOATS = 48 << 10, BU_FMA_ROUNDS = 400000 };

typedef struct bu_limit_job {
    int what;
    const float *buffer;
    int64_t n;
    float *l2;
} bu_limit_job;

static inline void bu_limit_part(void *ctx, int64_t begin, int64_t end, int worker)
{
    const bu_limit_job *j = ctx;
    float s = 0;
#if defined(__x86_64__)
    for (int64_t i = begin; i < end; i++) {
        if (j->what == BU_READ_MEM) s += bu_read(j->buffer + i * 65536, 65536);
        else if (j->what == BU_READ_L2)
            for (int rep = 0; rep < 200; rep++) {
                __asm__ volatile("" ::: "memory");
                s += bu_read(j->l2 + (int64_t)worker * BU_L2_FLOATS, BU_L2_FLOATS);
            }
        else if (j->what == BU_BF16) s += bu_bf16_avx512(BU_FMA_ROUNDS);
        else s += gm_device_isa(bu_dev) == GM_ISA_AVX512 ? bu_fma_avx512(BU_FMA_ROUNDS) : bu_fma_avx2(BU_FMA_ROUNDS);
    }
#else
    (void)j, (void)begin, (void)end, (void)worker;
#endif
    bu_sink = s;
}

/* Best of five, in seconds. */
static inline double bu_best(bu_limit_job *j, int64_t items)
{
    double best = 1e9;
    for (int rep = 0; rep < 5; rep++) {
        double t = bu_now();
        gm_device_parallel(bu_dev, items, 1, bu_limit_part, j);
        t = bu_now() - t;
        if (t < best) best = t;
    }
    return best;
}

static inline void bu_init(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    gm_error err;
    gm_isa isa = gm_isa_detect();
    if (argc > 2 && gm_isa_parse(&isa, argv[2], &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(2);
    }
    if (gm_device_open_cpu(&bu_dev, isa, threads, &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(2);
    }
    bu_threads = threads = gm_device_threads(bu_dev);
    if (isa == GM_ISA_REF) isa = GM_ISA_AVX2; /* the limits are the machine's, not the variant's */
    int64_t floats = (int64_t)128 << 20;
    bu_limit_job j = {.n = floats};
    float *buffer = gm_pages_alloc((size_t)floats * 4);
    if (!buffer) exit(2);
    for (int64_t i = 0; i < floats; i += 1024) buffer[i] = 1;
    j.buffer = buffer;
    j.what = BU_READ_MEM;
    bu_limit.mem = (double)floats * 4 / bu_best(&j, floats / 65536);
    gm_pages_free(buffer, (size_t)floats * 4);
    j.l2 = gm_new_array(float, (int64_t)threads * BU_L2_FLOATS);
    j.what = BU_READ_L2;
    bu_limit.l2 = (double)threads * 8 * BU_L2_FLOATS * 4.0 * 200 / bu_best(&j, threads * 8);
    gm_free(j.l2);
    j.what = BU_FMA;
    int lanes = gm_device_isa(bu_dev) == GM_ISA_AVX512 ? 16 : 8;
    bu_limit.fma = (double)threads * 4 * BU_FMA_ROUNDS * 12.0 * lanes / bu_best(&j, threads * 4);
    if (gm_device_isa(bu_dev) == GM_ISA_AVX512) {
        j.what = BU_BF16;
        bu_limit.bf16 = (double)threads * 4 * BU_FMA_ROUNDS * 12.0 * 32 / bu_best(&j, threads * 4);
    }
    printf("# %s, %d threads; memory %.1f GB/s, L2 %.0f GB/s, FP32 %.1f G multiply-adds/s, BF16 %.1f\n",
           gm_isa_name(gm_device_isa(bu_dev)), threads, bu_limit.mem * 1e-9, bu_limit.l2 * 1e-9, bu_limit.fma * 1e-9,
           bu_limit.bf16 * 1e-9);
}

static int bu_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* run(ctx, i) for the ith time: it may walk through copies of its data. Reports one line. mem, l2: bytes read and
 * written there; fma, bf16: multiply-adds on the units. */
typedef struct bu_work {
    const char *op, *shape;
    double mem, l2, fma, bf16;
} bu_work;

static inline void bu_run(const bu_work *w, void (*run)(void *ctx, int i), void *ctx)
{
    enum { RUNS = 401 };
    double t[RUNS], start = bu_now();
    int n = 0;
    run(ctx, 0);
    while (n < RUNS && (n < 5 || bu_now() - start < 0.4)) {
        double t0 = bu_now();
        run(ctx, n + 1);
        t[n++] = bu_now() - t0;
    }
    qsort(t, (size_t)n, sizeof *t, bu_compare);
    double median = t[n / 2], spread = (t[n * 3 / 4] - t[n / 4]) / median;
    double bound[4] = {w->mem / bu_limit.mem, w->l2 / bu_limit.l2, w->fma / bu_limit.fma,
                       w->bf16 > 0 ? w->bf16 / (bu_limit.bf16 > 0 ? bu_limit.bf16 : bu_limit.fma) : 0};
    static const char *const names[4] = {"memory", "L2", "FP32", "BF16"};
    int b = 0;
    for (int i = 1; i < 4; i++)
        if (bound[i] > bound[b]) b = i;
    printf("%-13s %-34s %10.1f us  %7.1f GB/s %8.1f GMA/s  %-6s %3.0f %%  (n %d, IQR %.0f %%)\n", w->op, w->shape,
           median * 1e6, (w->mem > w->l2 ? w->mem : w->l2) / median * 1e-9, (w->fma + w->bf16) / median * 1e-9,
           names[b], 100 * bound[b] / median, n, 100 * spread);
}

/* Noise that is valid as F32, BF16 and E4M3 alike, of magnitude below 4 and without subnormals, as weights are. */
static inline void *bu_noise(int64_t bytes)
{
    uint8_t *p = gm_pages_alloc((size_t)bytes + 64);
    if (!p) exit(2);
    for (int64_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t v = (gm_mix64(1, (uint64_t)i) & 0xBF3FBF3FBF3FBF3Full) | 0x2020202020202020ull;
        memcpy(p + i, &v, 8);
    }
    return p;
}

static inline float *bu_floats(int64_t n)
{
    float *p = gm_pages_alloc((size_t)n * 4 + 64);
    if (!p) exit(2);
    for (int64_t i = 0; i < n; i++) p[i] = (float)((double)(gm_mix64(2, (uint64_t)i) >> 40) / (1 << 24) - 0.5);
    return p;
}

#endif
