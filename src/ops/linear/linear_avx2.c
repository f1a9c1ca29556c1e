#include "ops/linear/linear_simd.h"

const gm_linear_impl gm_linear_impl_avx2 = {part_f32, round_f32, NULL};
