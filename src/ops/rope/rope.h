/* Interleaved rotary embedding, in place, on d_rope values of each of n_heads heads of each row, the pair being
 * (x[2j], x[2j+1]) and the angle pos * theta^(-2j / d_rope), computed in double. */
#ifndef GM_OPS_ROPE_H
#define GM_OPS_ROPE_H
#include "ops/slice.h"
#include "ops/tensor.h"

typedef struct gm_rope_args {
    float *x; /* head h of row r starts at x + r * ld + h * head_stride */
    int64_t ld, head_stride;
    const gm_pos *pos; /* [n] */
    int32_t n, n_heads, d_rope; /* d_rope even, at most 256 */
    float theta;
    gm_device *dev;
} gm_rope_args;
void gm_rope(const gm_rope_args *a);
#endif
