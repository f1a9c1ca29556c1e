/* The variants of residual_add: items are elements. */
#ifndef GM_OPS_RESIDUAL_ADD_INTERNAL_H
#define GM_OPS_RESIDUAL_ADD_INTERNAL_H
#include "ops/residual_add/residual_add.h"
#include "ops/variant.h"

gm_items_fn gm_residual_add_ref, gm_residual_add_avx2, gm_residual_add_avx512;
#endif
