/* Where memory lives and in what order work runs: one interface for every backend.
 *
 * The CPU device runs an op when it is called and spreads its rows over a fixed team of threads. Which thread
 * computes a row never changes the row's result: ops split work only over independent outputs. */
#ifndef GM_DEVICE_DEVICE_H
#define GM_DEVICE_DEVICE_H

#include "base/status.h"

typedef struct gm_device gm_device;

typedef enum gm_device_kind { GM_DEVICE_CPU } gm_device_kind;

/* Instruction sets of the CPU variants, in the order of preference from the end. */
typedef enum gm_isa {
    GM_ISA_REF,    /* plain C */
    GM_ISA_AVX2,   /* AVX2, FMA, F16C */
    GM_ISA_AVX512, /* AVX-512 F, BW, DQ, VL, BF16, VNNI */
} gm_isa;

/* The best this machine can run. */
gm_isa gm_isa_detect(void);
const char *gm_isa_name(gm_isa isa);
/* "auto", "reference", "avx2", "avx512"; GM_EARG when unknown, GM_ENOTSUP when this machine cannot run it. */
gm_status gm_isa_parse(gm_isa *out, const char *text, gm_error *err);

/* A CPU device with n_threads workers, the calling thread included (0: one for each processor we may use). */
gm_status gm_device_open_cpu(gm_device **out, gm_isa isa, int n_threads, gm_error *err);
void gm_device_close(gm_device *d);

gm_device_kind gm_device_get_kind(const gm_device *d);
gm_isa gm_device_isa(const gm_device *d);
int gm_device_threads(const gm_device *d);

/* Device memory, zeroed, 64-byte aligned. On a CPU it is ordinary memory. NULL when there is none left. */
void *gm_device_alloc(gm_device *d, size_t size);
void gm_device_free(gm_device *d, void *p, size_t size);

/* Call fn(ctx, begin, end, worker) over [0, n) cut into ranges of at least `grain` items, on the device's threads;
 * returns when all are done. worker < gm_device_threads() and no two ranges run at once with the same worker, so it
 * can index scratch space. Runs inline when n <= grain or inside another parallel call. */
typedef void gm_range_fn(void *ctx, int64_t begin, int64_t end, int worker);
void gm_device_parallel(gm_device *d, int64_t n, int64_t grain, gm_range_fn *fn, void *ctx);

#endif
