#include "ops/moe_route/moe_route_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_moe_route_ref, GM_X86(gm_moe_route_avx2), GM_X86(gm_moe_route_avx512)};

void gm_moe_route(const gm_moe_route_args *a)
{
    GM_ASSERT(a->n_experts <= GM_EXPERTS_MAX && a->n_active <= a->n_experts);
    GM_ASSERT(a->n_groups < 2 || a->n_experts % a->n_groups == 0);
    gm_op_run(GM_OP_moe_route, a->dev, VARIANTS, a, a->n, gm_grain((int64_t)a->n_experts * 16));
}
