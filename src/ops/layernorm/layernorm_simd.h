/* The body of layernorm_avx2.c and layernorm_avx512.c. */
#ifndef GM_OPS_LAYERNORM_SIMD_H
#define GM_OPS_LAYERNORM_SIMD_H
#include "ops/layernorm/layernorm_internal.h"
#include "ops/simd.h"

#include <math.h>

static inline float sum_of(const float *x, int64_t d)
{
    vf s = vf_zero();
    int64_t i = 0;
    for (; i + GM_VF <= d; i += GM_VF) s = vf_add(s, vf_load(x + i));
    if (i < d) s = vf_add(s, vf_load_n(x + i, d - i));
    return vf_sum(s);
}

/* The last, partial vector: what is outside must not count as -mean. */
static inline vf centred_n(const float *x, int64_t n, float mean)
{
    float t[GM_VF] = {0};
    for (int64_t i = 0; i < n; i++) t[i] = x[i] - mean;
    return vf_load(t);
}

static inline float squares_of(const float *x, int64_t d, float mean)
{
    vf s = vf_zero(), m = vf_set1(mean);
    int64_t i = 0;
    for (; i + GM_VF <= d; i += GM_VF) {
        vf v = vf_sub(vf_load(x + i), m);
        s = vf_fma(v, v, s);
    }
    if (i < d) {
        vf v = centred_n(x + i, d - i, mean);
        s = vf_fma(v, v, s);
    }
    return vf_sum(s);
}

void GM_VARIANT(gm_layernorm)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_layernorm_args *a = args;
    int64_t d = a->d;
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        float mean = sum_of(x, d) / (float)d;
        vf scale = vf_set1(1.0f / sqrtf(squares_of(x, d, mean) / (float)d + a->eps)), m = vf_set1(mean);
        int64_t i = 0;
        for (; i + GM_VF <= d; i += GM_VF) {
            vf v = vf_mul(vf_mul(vf_sub(vf_load(x + i), m), scale), vf_load(a->w + i));
            v = vf_add(v, vf_load(a->b + i));
            vf_store(y + i, a->round_bf16 ? vf_round_bf16(v) : v);
        }
        if (i < d) {
            vf v = vf_mul(vf_mul(vf_sub(vf_load_n(x + i, d - i), m), scale), vf_load_n(a->w + i, d - i));
            v = vf_add(v, vf_load_n(a->b + i, d - i));
            vf_store_n(y + i, a->round_bf16 ? vf_round_bf16(v) : v, d - i);
        }
    }
}

#endif
