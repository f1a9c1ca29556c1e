/* The variants of moe_route: items are rows. */
#ifndef GM_OPS_MOE_ROUTE_INTERNAL_H
#define GM_OPS_MOE_ROUTE_INTERNAL_H
#include "ops/moe_route/moe_route.h"
#include "ops/variant.h"

gm_items_fn gm_moe_route_ref, gm_moe_route_avx2, gm_moe_route_avx512;

/* From scores s [E] and choices s + bias [E] (overwritten) of row r to its ids and weights. */
void gm_moe_route_choose(const gm_moe_route_args *a, int64_t r, const float *s, float *choice);
#endif
