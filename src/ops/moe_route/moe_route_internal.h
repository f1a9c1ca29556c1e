/* The variants of moe_route: items are rows. */
#ifndef GM_OPS_MOE_ROUTE_INTERNAL_H
#define GM_OPS_MOE_ROUTE_INTERNAL_H
#include "ops/moe_route/moe_route.h"
#include "ops/variant.h"

gm_items_fn gm_moe_route_ref;
#endif
