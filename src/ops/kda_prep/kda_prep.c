#include "ops/kda_prep/kda_prep_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_kda_prep_ref, GM_X86(gm_kda_prep_avx2), GM_X86(gm_kda_prep_avx512)};

void gm_kda_prep(const gm_kda_prep_args *a)
{
    GM_ASSERT(a->d_head > 0 && a->lower < 0);
    gm_op_run(GM_OP_kda_prep, a->dev, VARIANTS, a, (int64_t)a->n * a->n_heads, gm_grain((int64_t)a->d_head * 12));
}
