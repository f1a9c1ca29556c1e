#include "ops/kda_prep/kda_prep_simd.h"
