#include "ops/swiglu/swiglu_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_swiglu_ref, GM_X86(gm_swiglu_avx2), GM_X86(gm_swiglu_avx512)};

void gm_swiglu(const gm_swiglu_args *a)
{
    GM_ASSERT(a->d > 0);
    gm_op_run(GM_OP_swiglu, a->dev, VARIANTS, a, a->n * (((int64_t)a->d + GM_SWIGLU_SPAN - 1) / GM_SWIGLU_SPAN), 4);
}

gm_items_fn *gm_swiglu_of(gm_isa isa)
{
    while (!VARIANTS[isa]) isa--;
    return VARIANTS[isa];
}
