#include "ops/layernorm/layernorm_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_layernorm_ref, GM_X86(gm_layernorm_avx2), GM_X86(gm_layernorm_avx512)};

void gm_layernorm(const gm_layernorm_args *a)
{
    GM_ASSERT(a->d > 0);
    gm_op_run(GM_OP_layernorm, a->dev, VARIANTS, a, a->n, gm_grain(a->d));
}
