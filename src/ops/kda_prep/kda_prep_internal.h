/* The variants of kda_prep: items are the heads of all rows. */
#ifndef GM_OPS_KDA_PREP_INTERNAL_H
#define GM_OPS_KDA_PREP_INTERNAL_H
#include "ops/kda_prep/kda_prep.h"
#include "ops/variant.h"

gm_items_fn gm_kda_prep_ref, gm_kda_prep_avx2, gm_kda_prep_avx512;
#endif
