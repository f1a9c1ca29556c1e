#include "ops/gated_norm/gated_norm_simd.h"
