#include "ops/mhc_mix/mhc_mix_internal.h"

static gm_items_fn *const DOT[GM_N_ISA] = {gm_mhc_dot_ref, GM_X86(gm_mhc_dot_avx2), GM_X86(gm_mhc_dot_avx512)};
static gm_items_fn *const PRE[GM_N_ISA] = {gm_mhc_pre_ref, GM_X86(gm_mhc_pre_avx2), GM_X86(gm_mhc_pre_avx512)};
static gm_items_fn *const POST[GM_N_ISA] = {gm_mhc_post_ref, GM_X86(gm_mhc_post_avx2), GM_X86(gm_mhc_post_avx512)};
static gm_items_fn *const MEAN[GM_N_ISA] = {gm_mhc_mean_ref, GM_X86(gm_mhc_mean_avx2), GM_X86(gm_mhc_mean_avx512)};

void gm_mhc_pre(const gm_mhc_pre_args *a)
{
    int32_t n_values = a->n_streams * (2 + a->n_streams);
    GM_ASSERT(a->n_streams >= 1 && a->n_streams <= GM_STREAMS_MAX && a->iters >= 1);
    GM_ASSERT(a->fn->rows == n_values && a->fn->cols == a->n_streams * a->d && a->fn->dtype != GM_F8E4M3);
    float m[GM_MHC_TOKENS * GM_MHC_VALUES_MAX];
    gm_isa isa = gm_variant_pick(GM_OP_mhc_pre, a->dev, PRE);
    for (int32_t t = 0; t < a->n; t += GM_MHC_TOKENS) {
        /* Few tokens: small items, to share the reading of fn among all threads. Many: fewer reads of h. */
        int32_t group = a->n >= 16 ? 6 : n_values / gm_device_threads(a->dev) >= 3 ? 3 : 1;
        gm_mhc_pre_job j = {a, t, a->n - t < GM_MHC_TOKENS ? a->n - t : GM_MHC_TOKENS, m, group};
        int64_t groups = (n_values + j.group - 1) / j.group, tiles = (j.n + GM_MHC_TILE - 1) / GM_MHC_TILE;
        gm_items_run(a->dev, DOT[isa], &j, groups * tiles, gm_grain((int64_t)a->fn->cols * j.group / 2));
        gm_items_run(a->dev, PRE[isa], &j, j.n, gm_grain((int64_t)a->fn->cols));
    }
}

void gm_mhc_post(const gm_mhc_post_args *a)
{
    GM_ASSERT(a->n_streams >= 1 && a->n_streams <= GM_STREAMS_MAX);
    int64_t spans = ((int64_t)a->d + GM_MHC_SPAN - 1) / GM_MHC_SPAN;
    gm_op_run(GM_OP_mhc_post, a->dev, POST, a, a->n * spans, 4);
}

void gm_mhc_mean(const gm_mhc_mean_args *a)
{
    gm_op_run(GM_OP_mhc_mean, a->dev, MEAN, a, a->n_out, gm_grain((int64_t)a->d * a->n_streams));
}
