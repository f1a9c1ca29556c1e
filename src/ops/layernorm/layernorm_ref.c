#include "ops/layernorm/layernorm_internal.h"

#include <math.h>

void gm_layernorm_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_layernorm_args *a = args;
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        float sum = 0, squares = 0;
        for (int32_t i = 0; i < a->d; i++) sum += x[i];
        float mean = sum / (float)a->d;
        for (int32_t i = 0; i < a->d; i++) squares += (x[i] - mean) * (x[i] - mean);
        float scale = 1.0f / sqrtf(squares / (float)a->d + a->eps);
        for (int32_t i = 0; i < a->d; i++) {
            float v = (x[i] - mean) * scale * a->w[i] + a->b[i];
            y[i] = a->round_bf16 ? gm_round_bf16(v) : v;
        }
    }
}
