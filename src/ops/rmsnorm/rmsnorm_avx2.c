#include "ops/rmsnorm/rmsnorm_simd.h"
