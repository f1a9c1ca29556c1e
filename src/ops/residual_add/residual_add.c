#include "ops/residual_add/residual_add_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_residual_add_ref, GM_X86(gm_residual_add_avx2), GM_X86(gm_residual_add_avx512)};

void gm_residual_add(const gm_residual_add_args *a)
{
    GM_ASSERT(a->n >= 0);
    gm_op_run(GM_OP_residual_add, a->dev, VARIANTS, a, a->n, 32768);
}
