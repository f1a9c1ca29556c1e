#include "ops/rope/rope_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_rope_ref, NULL, NULL};

void gm_rope(const gm_rope_args *a)
{
    GM_ASSERT(a->d_rope % 2 == 0 && a->d_rope <= 256);
    gm_op_run(GM_OP_rope, a->dev, VARIANTS, a, a->n, gm_grain((int64_t)a->d_rope * (a->n_heads + 32)));
}
