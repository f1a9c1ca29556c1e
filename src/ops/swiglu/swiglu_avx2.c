#include "ops/swiglu/swiglu_simd.h"
