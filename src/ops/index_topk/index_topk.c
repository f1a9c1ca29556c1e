#include "ops/index_topk/index_topk_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_index_topk_ref, GM_X86(gm_index_topk_avx2), GM_X86(gm_index_topk_avx512)};

void gm_index_topk(const gm_index_topk_args *a)
{
    GM_ASSERT(a->n_select > 0 && a->row_begin >= 0 && a->row_end <= a->rows->n_rows);
    gm_op_run(GM_OP_index_topk, a->dev, VARIANTS, a, a->row_end - a->row_begin, gm_grain(a->n_select * 4));
}
