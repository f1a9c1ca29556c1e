#include "ops/kv_append/kv_append_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_kv_append_ref, GM_X86(gm_kv_append_avx2), GM_X86(gm_kv_append_avx512)};

void gm_kv_append(const gm_kv_append_args *a)
{
    GM_ASSERT(a->cache.row_bytes >= gm_latent_row_bytes(a->cache.dtype, a->cache.d_latent, a->cache.d_rope));
    GM_ASSERT(a->cache.d_rope == 0 || a->kr);
    gm_op_run(GM_OP_kv_append, a->dev, VARIANTS, a, a->rows->n_rows, gm_grain(a->cache.row_bytes * 2));
}
