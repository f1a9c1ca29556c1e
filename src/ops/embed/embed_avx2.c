#include "ops/embed/embed_simd.h"
