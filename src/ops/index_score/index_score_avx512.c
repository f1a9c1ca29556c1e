#include "ops/index_score/index_score_simd.h"
