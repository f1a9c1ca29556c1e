#include "ops/gated_norm/gated_norm_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_gated_norm_ref, GM_X86(gm_gated_norm_avx2), GM_X86(gm_gated_norm_avx512)};

void gm_gated_norm(const gm_gated_norm_args *a)
{
    GM_ASSERT(a->d_head > 0);
    gm_op_run(GM_OP_gated_norm, a->dev, VARIANTS, a, (int64_t)a->n * a->n_heads, gm_grain((int64_t)a->d_head * 4));
}
