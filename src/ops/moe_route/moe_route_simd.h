/* The body of moe_route_avx2.c and moe_route_avx512.c: the sigmoids; choosing is the reference's. */
#ifndef GM_OPS_MOE_ROUTE_SIMD_H
#define GM_OPS_MOE_ROUTE_SIMD_H
#include "ops/moe_route/moe_route_internal.h"
#include "ops/simd.h"

void GM_VARIANT(gm_moe_route)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_moe_route_args *a = args;
    int64_t E = a->n_experts;
    for (int64_t r = begin; r < end; r++) {
        float s[GM_EXPERTS_MAX], choice[GM_EXPERTS_MAX];
        const float *logits = a->logits + r * E;
        for (int64_t e = 0; e < E; e += GM_VF) {
            int64_t n = E - e;
            vf v = vf_sigmoid(n >= GM_VF ? vf_load(logits + e) : vf_load_n(logits + e, n));
            vf c = vf_add(v, n >= GM_VF ? vf_load(a->bias + e) : vf_load_n(a->bias + e, n));
            if (n >= GM_VF) {
                vf_store(s + e, v);
                vf_store(choice + e, c);
            } else {
                vf_store_n(s + e, v, n);
                vf_store_n(choice + e, c, n);
            }
        }
        gm_moe_route_choose(a, r, s, choice);
    }
}

#endif
