#include "ops/kda_scan/kda_scan_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_kda_scan_ref, GM_X86(gm_kda_scan_avx2), GM_X86(gm_kda_scan_avx512)};

void gm_kda_scan(const gm_kda_scan_args *a)
{
    GM_ASSERT(a->d_head > 0 && a->d_head <= GM_KDA_HEAD_MAX);
    for (int32_t i = 0; i < a->rows->n_slices; i++) GM_ASSERT(a->rows->slices[i].slot.id >= 0);
    int64_t per_slice = gm_kda_scan_blocks(a) * a->n_heads;
    gm_op_run(GM_OP_kda_scan, a->dev, VARIANTS, a, a->rows->n_slices * per_slice,
              gm_grain((int64_t)a->d_head * GM_KDA_SCAN_COLS * 2));
}
