#include "ops/mla_attn/mla_attn_simd.h"
