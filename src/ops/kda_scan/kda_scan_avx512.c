#include "ops/kda_scan/kda_scan_simd.h"
