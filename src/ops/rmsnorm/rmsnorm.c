#include "ops/rmsnorm/rmsnorm_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_rmsnorm_ref, GM_X86(gm_rmsnorm_avx2), GM_X86(gm_rmsnorm_avx512)};

void gm_rmsnorm(const gm_rmsnorm_args *a)
{
    GM_ASSERT(a->d > 0);
    gm_op_run(GM_OP_rmsnorm, a->dev, VARIANTS, a, a->n, gm_grain(a->d));
}
