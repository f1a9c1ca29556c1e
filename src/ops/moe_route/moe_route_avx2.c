#include "ops/moe_route/moe_route_simd.h"
