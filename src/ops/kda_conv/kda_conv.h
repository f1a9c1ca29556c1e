/* Short causal depthwise convolution, then silu: y_t[c] = silu(sum_j w[c][j] x_{t-(K-1)+j}[c]), tap K-1 on the current
 * token, zeros before the sequence starts. The last K-1 inputs of each sequence are kept in its slot.
 *
 * bf16: inputs are rounded to BF16 before use and kept as BF16, so that a sequence cut anywhere gives the same values.
 * State of a slot: [K-1][channels], oldest first, F32 or BF16, at state + slot * slot_stride (bytes).
 * A slice with begin 0 starts from zeros whatever the slot holds. */
#ifndef GM_OPS_KDA_CONV_H
#define GM_OPS_KDA_CONV_H
#include "ops/slice.h"
#include "ops/tensor.h"

typedef struct gm_kda_conv_args {
    const float *x; /* [n_rows][channels], stride ldx */
    const float *w; /* [channels][K] */
    float *y;       /* [n_rows][channels], stride ldy; not x */
    uint8_t *state;
    int64_t slot_stride; /* bytes */
    const gm_rows *rows;
    int32_t channels, taps; /* K = taps, 2..8 */
    int64_t ldx, ldy;
    bool bf16;
    gm_device *dev;
} gm_kda_conv_args;
void gm_kda_conv(const gm_kda_conv_args *a);
#endif
