/* The scans over a row that variants differ in. Comparisons with NaN are false. */
#ifndef GM_OPS_SAMPLE_INTERNAL_H
#define GM_OPS_SAMPLE_INTERNAL_H

#include <stdint.h>

#define GM_SCAN_BLOCK 1024   /* elements whose f32 sum is added to the f64 total */
#define GM_EXP_CUTOFF -87.0f /* exp() of less is 0: no denormals */

typedef struct gm_scans {
    const char *name;
    /* First index in [begin, n) with x[i] > v; n where there is none. */
    int32_t (*next_above)(const float *x, int32_t begin, int32_t n, float v);
    int32_t (*count_above)(const float *x, int32_t n, float v);
    /* Sum of w[i] = exp((x[i] - shift) * scale), which must not be above 1; NaN gives 0. w may be NULL. */
    double (*exp_row)(const float *x, int32_t n, float shift, float scale, float *w);
    /* Sum of the w[i] >= t, t >= 0. */
    double (*sum_from)(const float *w, int32_t n, float t);
} gm_scans;

extern const gm_scans gm_scans_ref;
#if defined(__x86_64__)
extern const gm_scans gm_scans_avx2;
#endif

#endif
