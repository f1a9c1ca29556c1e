/* The variants of rmsnorm: items are rows. */
#ifndef GM_OPS_RMSNORM_INTERNAL_H
#define GM_OPS_RMSNORM_INTERNAL_H
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/variant.h"

gm_items_fn gm_rmsnorm_ref, gm_rmsnorm_avx2, gm_rmsnorm_avx512;
#endif
