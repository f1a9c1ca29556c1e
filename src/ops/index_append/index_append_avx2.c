#include "ops/index_append/index_append_simd.h"
