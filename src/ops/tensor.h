/* Element types and matrix views shared by the ops.
 *
 * Activations on the CPU are FP32, row-major; a row of token r starts at p + r * ld. Weights are read as they are
 * stored. GM_ACT_BF16 means: values that enter a matrix product are rounded to BF16 first (nearest even); sums and
 * everything else stay FP32. */
#ifndef GM_OPS_TENSOR_H
#define GM_OPS_TENSOR_H

#include "device/device.h"

typedef enum gm_dtype { GM_F32, GM_BF16, GM_F8E4M3 } gm_dtype;
typedef enum gm_act { GM_ACT_F32, GM_ACT_BF16 } gm_act;

/* A weight matrix W[rows][cols], row-major without gaps (out_features, in_features).
 * FP8: w[r][c] = e4m3(code[r][c]) * scale[(row0 + r) / block_rows][c / block_cols]; scale has scale_cols columns.
 * row0 is the matrix's first row within the stored tensor: a head's rows may begin inside a scale block. */
typedef struct gm_matrix {
    const void *data;
    gm_dtype dtype;
    int32_t rows, cols;
    const float *scale;
    int32_t scale_cols, block_rows, block_cols;
    int32_t row0;
} gm_matrix;

static inline int64_t gm_dtype_size(gm_dtype t)
{
    return t == GM_F32 ? 4 : t == GM_BF16 ? 2 : 1;
}

static inline float gm_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)h << 16};
    return v.f;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t gm_f32_to_bf16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f};
    if ((v.u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(v.u >> 16 | 0x40u);
    return (uint16_t)((v.u + 0x7FFFu + (v.u >> 16 & 1u)) >> 16);
}

static inline float gm_round_bf16(float f)
{
    return gm_bf16_to_f32(gm_f32_to_bf16(f));
}

/* IEEE half. To half: nearest, ties to even; |f| above 65504 (infinity too) saturates, NaN stays NaN. */
float gm_f16_to_f32(uint16_t h);
uint16_t gm_f32_to_f16(float f);

/* E4M3 "fn": bias 7, no infinities, NaN is 0x7F and 0xFF, largest 448, smallest subnormal 2^-9. (The FNUZ form of
 * gfx942 reads the same bytes as other values: convert, never reinterpret.) */
extern const float gm_e4m3_table[256];
static inline float gm_e4m3_to_f32(uint8_t code)
{
    return gm_e4m3_table[code];
}
/* Nearest, ties to even; |f| above 448 (infinity too) saturates to 448, NaN gives 0x7F. */
uint8_t gm_f32_to_e4m3(float f);

#endif
