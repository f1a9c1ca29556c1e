#include "ops/embed/embed_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_embed_ref, GM_X86(gm_embed_avx2), GM_X86(gm_embed_avx512)};

void gm_embed(const gm_embed_args *a)
{
    GM_ASSERT(a->table->dtype != GM_F8E4M3);
    for (int32_t r = 0; r < a->n; r++) GM_ASSERT(a->ids[r] >= 0 && a->ids[r] < a->table->rows);
    gm_op_run(GM_OP_embed, a->dev, VARIANTS, a, a->n, gm_grain((int64_t)a->table->cols * a->n_copies));
}
