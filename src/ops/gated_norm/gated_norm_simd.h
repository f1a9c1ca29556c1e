/* The body of gated_norm_avx2.c and gated_norm_avx512.c. */
#ifndef GM_OPS_GATED_NORM_SIMD_H
#define GM_OPS_GATED_NORM_SIMD_H
#include "ops/gated_norm/gated_norm_internal.h"
#include "ops/simd.h"

#include <math.h>

void GM_VARIANT(gm_gated_norm)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_gated_norm_args *a = args;
    int64_t d = a->d_head;
    for (int64_t item = begin; item < end; item++) {
        const float *x = a->x + item * d, *g = a->g + item * d;
        float *y = a->y + item * d;
        vf scale = vf_set1(1.0f / sqrtf(vf_dot(x, x, d) / (float)d + a->eps));
        int64_t i = 0;
        for (; i + GM_VF <= d; i += GM_VF) {
            vf v = vf_mul(vf_mul(vf_load(x + i), scale), vf_load(a->w + i));
            vf_store(y + i, vf_mul(v, vf_sigmoid(vf_load(g + i))));
        }
        if (i < d) {
            vf v = vf_mul(vf_mul(vf_load_n(x + i, d - i), scale), vf_load_n(a->w + i, d - i));
            vf_store_n(y + i, vf_mul(v, vf_sigmoid(vf_load_n(g + i, d - i))), d - i);
        }
    }
}

#endif
