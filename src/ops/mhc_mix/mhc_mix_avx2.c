#include "ops/mhc_mix/mhc_mix_simd.h"
