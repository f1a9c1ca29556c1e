#include "ops/layernorm/layernorm_simd.h"
