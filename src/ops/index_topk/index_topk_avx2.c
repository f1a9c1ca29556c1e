#include "ops/index_topk/index_topk_simd.h"
