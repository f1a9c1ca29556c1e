#include "ops/kda_conv/kda_conv_simd.h"
