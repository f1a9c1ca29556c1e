#include "ops/residual_add/residual_add_simd.h"
