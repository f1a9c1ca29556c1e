#include "ops/rmsnorm/rmsnorm_internal.h"

#include <math.h>

void gm_rmsnorm_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_rmsnorm_args *a = args;
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        float sum = 0;
        for (int32_t i = 0; i < a->d; i++) sum += x[i] * x[i];
        float scale = 1.0f / sqrtf(sum / (float)a->d + a->eps);
        for (int32_t i = 0; i < a->d; i++) y[i] = x[i] * scale * a->w[i];
    }
}
