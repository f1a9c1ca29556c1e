#include "ops/kda_prep/kda_prep_internal.h"

#include <math.h>

static void normalise(float *x, int32_t d, float scale)
{
    float sum = 0;
    for (int32_t i = 0; i < d; i++) sum += x[i] * x[i];
    float s = scale / sqrtf(sum + 1e-6f);
    for (int32_t i = 0; i < d; i++) x[i] *= s;
}

void gm_kda_prep_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_kda_prep_args *a = args;
    int32_t D = a->d_head;
    float q_scale = 1.0f / sqrtf((float)D);
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / a->n_heads, h = item % a->n_heads;
        normalise(a->q + r * a->ldq + h * D, D, q_scale);
        normalise(a->k + r * a->ldq + h * D, D, 1.0f);
        const float *f = a->f + item * D, *bias = a->dt_bias + h * D;
        float *decay = a->decay + item * D;
        float rate = expf(a->A_log[h]);
        for (int32_t i = 0; i < D; i++)
            decay[i] = expf(a->lower * (1.0f / (1.0f + expf(-rate * (f[i] + bias[i])))));
        a->beta[item] = 1.0f / (1.0f + expf(-a->b[item]));
    }
}
