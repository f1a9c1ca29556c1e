/* The variants of the mHC ops. */
#ifndef GM_OPS_MHC_MIX_INTERNAL_H
#define GM_OPS_MHC_MIX_INTERNAL_H
#include "ops/mhc_mix/mhc_mix.h"
#include "ops/variant.h"

enum { GM_MHC_VALUES_MAX = GM_STREAMS_MAX * (2 + GM_STREAMS_MAX), GM_MHC_TOKENS = 64, GM_MHC_TILE = 4 };

/* gm_mhc_pre goes in two phases over at most GM_MHC_TOKENS tokens, because with few tokens the product with fn is
 * most of the work and must be shared by all threads. m [n][S*(2+S)]: fn f, not yet normalised. */
typedef struct gm_mhc_pre_job {
    const gm_mhc_pre_args *a;
    int32_t t_begin, n;
    float *m;
    int32_t group; /* values of fn in an item */
} gm_mhc_pre_job;

/* args: gm_mhc_pre_job. Items: groups of values (rows of fn), for GM_MHC_TILE tokens after GM_MHC_TILE tokens. */
gm_items_fn gm_mhc_dot_ref, gm_mhc_dot_avx2, gm_mhc_dot_avx512;
/* args: gm_mhc_pre_job. Items: tokens of the job; from m to y, post, comb. */
gm_items_fn gm_mhc_pre_ref, gm_mhc_pre_avx2, gm_mhc_pre_avx512;
/* args: gm_mhc_post_args; items: spans of GM_MHC_SPAN columns, token after token. */
gm_items_fn gm_mhc_post_ref, gm_mhc_post_avx2, gm_mhc_post_avx512;
/* args: gm_mhc_mean_args; items: rows. */
gm_items_fn gm_mhc_mean_ref, gm_mhc_mean_avx2, gm_mhc_mean_avx512;

enum { GM_MHC_SPAN = 512 };

/* From the values m (normalised by r) of one token to pre, post and comb: small and scalar in every variant. */
void gm_mhc_coefficients(const gm_mhc_pre_args *a, const float *m, float r, float *pre, float *post, float *comb);

#endif
