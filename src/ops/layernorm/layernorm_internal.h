/* The variants of layernorm: items are rows. */
#ifndef GM_OPS_LAYERNORM_INTERNAL_H
#define GM_OPS_LAYERNORM_INTERNAL_H
#include "ops/layernorm/layernorm.h"
#include "ops/variant.h"

gm_items_fn gm_layernorm_ref, gm_layernorm_avx2, gm_layernorm_avx512;
#endif
