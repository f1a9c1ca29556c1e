/* The variants of gated_norm: items are the heads of all rows. */
#ifndef GM_OPS_GATED_NORM_INTERNAL_H
#define GM_OPS_GATED_NORM_INTERNAL_H
#include "ops/gated_norm/gated_norm.h"
#include "ops/variant.h"

gm_items_fn gm_gated_norm_ref, gm_gated_norm_avx2, gm_gated_norm_avx512;
#endif
