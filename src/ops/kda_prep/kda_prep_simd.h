/* The body of kda_prep_avx2.c and kda_prep_avx512.c. */
#ifndef GM_OPS_KDA_PREP_SIMD_H
#define GM_OPS_KDA_PREP_SIMD_H
#include "ops/kda_prep/kda_prep_internal.h"
#include "ops/simd.h"

#include <math.h>

static inline void normalise(float *x, int64_t d, float scale)
{
    vf s = vf_set1(scale / sqrtf(vf_dot(x, x, d) + 1e-6f));
    int64_t i = 0;
    for (; i + GM_VF <= d; i += GM_VF) vf_store(x + i, vf_mul(vf_load(x + i), s));
    if (i < d) vf_store_n(x + i, vf_mul(vf_load_n(x + i, d - i), s), d - i);
}

static inline vf decay_of(vf f, vf bias, vf rate, vf lower)
{
    return vf_exp_mid(vf_mul(lower, vf_sigmoid(vf_mul(rate, vf_add(f, bias)))));
}

void GM_VARIANT(gm_kda_prep)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_kda_prep_args *a = args;
    int64_t D = a->d_head;
    float q_scale = 1.0f / sqrtf((float)D);
    vf lower = vf_set1(a->lower);
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / a->n_heads, h = item % a->n_heads;
        normalise(a->q + r * a->ldq + h * D, D, q_scale);
        normalise(a->k + r * a->ldq + h * D, D, 1.0f);
        const float *f = a->f + item * D, *bias = a->dt_bias + h * D;
        float *decay = a->decay + item * D;
        vf rate = vf_set1(expf(a->A_log[h]));
        int64_t i = 0;
        for (; i + GM_VF <= D; i += GM_VF)
            vf_store(decay + i, decay_of(vf_load(f + i), vf_load(bias + i), rate, lower));
        if (i < D)
            vf_store_n(decay + i, decay_of(vf_load_n(f + i, D - i), vf_load_n(bias + i, D - i), rate, lower), D - i);
        a->beta[item] = 1.0f / (1.0f + expf(-a->b[item]));
    }
}

#endif
