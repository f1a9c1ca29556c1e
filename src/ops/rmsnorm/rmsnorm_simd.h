/* The body of rmsnorm_avx2.c and rmsnorm_avx512.c. */
#ifndef GM_OPS_RMSNORM_SIMD_H
#define GM_OPS_RMSNORM_SIMD_H
#include "ops/rmsnorm/rmsnorm_internal.h"
#include "ops/simd.h"

#include <math.h>

void GM_VARIANT(gm_rmsnorm)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_rmsnorm_args *a = args;
    int64_t d = a->d;
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        vf scale = vf_set1(1.0f / sqrtf(vf_dot(x, x, d) / (float)d + a->eps));
        int64_t i = 0;
        for (; i + GM_VF <= d; i += GM_VF) vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(a->w + i)));
        if (i < d) {
            vf v = vf_mul(vf_mul(vf_load_n(x + i, d - i), scale), vf_load_n(a->w + i, d - i));
            vf_store_n(y + i, v, d - i);
        }
    }
}

#endif
