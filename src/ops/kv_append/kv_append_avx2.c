#include "ops/kv_append/kv_append_simd.h"
