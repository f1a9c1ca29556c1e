/* The body of residual_add_avx2.c and residual_add_avx512.c. */
#ifndef GM_OPS_RESIDUAL_ADD_SIMD_H
#define GM_OPS_RESIDUAL_ADD_SIMD_H
#include "ops/residual_add/residual_add_internal.h"
#include "ops/simd.h"

void GM_VARIANT(gm_residual_add)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_residual_add_args *a = args;
    int64_t i = begin;
    for (; i + GM_VF <= end; i += GM_VF) vf_store(a->h + i, vf_add(vf_load(a->h + i), vf_load(a->y + i)));
    for (; i < end; i++) a->h[i] += a->y[i];
}

#endif
