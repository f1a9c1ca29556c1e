#include "ops/gated_norm/gated_norm_internal.h"

#include <math.h>

void gm_gated_norm_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_gated_norm_args *a = args;
    int32_t d = a->d_head;
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->x + i * d, *g = a->g + i * d;
        float *y = a->y + i * d;
        float sum = 0;
        for (int32_t c = 0; c < d; c++) sum += x[c] * x[c];
        float scale = 1.0f / sqrtf(sum / (float)d + a->eps);
        for (int32_t c = 0; c < d; c++) y[c] = x[c] * scale * a->w[c] * (1.0f / (1.0f + expf(-g[c])));
    }
}
