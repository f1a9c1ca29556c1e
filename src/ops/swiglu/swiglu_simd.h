/* The body of swiglu_avx2.c and swiglu_avx512.c. */
#ifndef GM_OPS_SWIGLU_SIMD_H
#define GM_OPS_SWIGLU_SIMD_H
#include "ops/swiglu/swiglu_internal.h"
#include "ops/simd.h"

#include <math.h>

static inline vf gate_up(vf g, vf u, vf limit, vf minus)
{
    g = vf_min(limit, g); /* NaN stays: it is the second operand */
    u = vf_max(minus, vf_min(limit, u));
    return vf_mul(vf_mul(g, vf_sigmoid(g)), u);
}

void GM_VARIANT(gm_swiglu)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_swiglu_args *a = args;
    int64_t spans = ((int64_t)a->d + GM_SWIGLU_SPAN - 1) / GM_SWIGLU_SPAN;
    float l = a->limit > 0 ? a->limit : INFINITY;
    vf limit = vf_set1(l), minus = vf_set1(-l);
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / spans, i = item % spans * GM_SWIGLU_SPAN;
        int64_t last = i + GM_SWIGLU_SPAN < a->d ? i + GM_SWIGLU_SPAN : a->d;
        const float *g = a->g + r * a->ldg, *u = a->u + r * a->ldu;
        float *y = a->y + r * a->ldy;
        for (; i + GM_VF <= last; i += GM_VF) vf_store(y + i, gate_up(vf_load(g + i), vf_load(u + i), limit, minus));
        if (i < last) {
            vf v = gate_up(vf_load_n(g + i, last - i), vf_load_n(u + i, last - i), limit, minus);
            vf_store_n(y + i, v, last - i);
        }
    }
}

#endif
