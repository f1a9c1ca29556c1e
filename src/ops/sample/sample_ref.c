#include "ops/sample/sample_internal.h"

#include <math.h>

static int32_t next_above(const float *x, int32_t begin, int32_t n, float v)
{
    for (int32_t i = begin; i < n; i++)
        if (x[i] > v) return i;
    return n;
}

static int32_t count_above(const float *x, int32_t n, float v)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) count += x[i] > v;
    return count;
}

static double exp_row(const float *x, int32_t n, float shift, float scale, float *w)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        float t = (x[i] - shift) * scale;
        float e = t >= GM_EXP_CUTOFF ? expf(t) : 0; /* false for NaN */
        if (w) w[i] = e;
        sum += e;
    }
    return sum;
}

static double sum_from(const float *w, int32_t n, float t)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        if (w[i] >= t) sum += w[i];
    return sum;
}

const gm_scans gm_scans_ref = {"reference", next_above, count_above, exp_row, sum_from};
