#include "ops/rope/rope_internal.h"

#include <math.h>

/* Sine and cosine are taken once a row and used by all its heads. */
void gm_rope_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_rope_args *a = args;
    int32_t half = a->d_rope / 2;
    double freq[128];
    float sine[128], cosine[128];
    for (int32_t j = 0; j < half; j++) freq[j] = pow((double)a->theta, -2.0 * j / a->d_rope);
    for (int64_t r = begin; r < end; r++) {
        for (int32_t j = 0; j < half; j++) {
            double angle = a->pos[r].tok * freq[j];
            sine[j] = (float)sin(angle);
            cosine[j] = (float)cos(angle);
        }
        for (int32_t h = 0; h < a->n_heads; h++) {
            float *x = a->x + r * a->ld + h * a->head_stride;
            for (int32_t j = 0; j < half; j++) {
                float re = x[2 * j], im = x[2 * j + 1];
                x[2 * j] = re * cosine[j] - im * sine[j];
                x[2 * j + 1] = re * sine[j] + im * cosine[j];
            }
        }
    }
}
