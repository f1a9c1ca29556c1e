#include "ops/kda_conv/kda_conv_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_kda_conv_ref, GM_X86(gm_kda_conv_avx2), GM_X86(gm_kda_conv_avx512)};

void gm_kda_conv(const gm_kda_conv_args *a)
{
    GM_ASSERT(a->taps >= 2 && a->taps <= GM_KDA_TAPS_MAX && a->channels > 0);
    for (int32_t i = 0; i < a->rows->n_slices; i++) GM_ASSERT(a->rows->slices[i].slot.id >= 0);
    if (a->rows->n_slices == 0) return;
    int64_t blocks = ((int64_t)a->channels + GM_KDA_CONV_BLOCK - 1) / GM_KDA_CONV_BLOCK;
    int64_t tokens = (a->rows->n_rows + a->rows->n_slices - 1) / a->rows->n_slices;
    gm_op_run(GM_OP_kda_conv, a->dev, VARIANTS, a, a->rows->n_slices * blocks,
              gm_grain((int64_t)GM_KDA_CONV_BLOCK * 4 * tokens));
}
