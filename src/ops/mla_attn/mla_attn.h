/* Absorbed multi-head latent attention over the selected tokens, for prompt chunks and decodes alike. Row r attends to
 * the tokens of its selected pools and, with `tail`, to those of its unfinished pool (pool * floor((pos+1)/pool) ..
 * pos), in rising position order:
 *   s_j = (q_lat[h] . c_j + q_rope[h] . kr_j) * scale;  p = softmax(s), FP32;  o[h] = sum_j p_j c_j   [d_latent]
 * An empty selection gives zeros. Each row's result is a fixed function of its own inputs. The rows it reads must have
 * been appended before. Cache values are dequantised to FP32. Tolerance of the variants: 2e-5 of max |c|. */
#ifndef GM_OPS_MLA_ATTN_H
#define GM_OPS_MLA_ATTN_H
#include "ops/slice.h"
#include "ops/tensor.h"

typedef struct gm_mla_attn_args {
    const float *q_lat;  /* [n_rows][H][d_latent] */
    const float *q_rope; /* head h of row r at q_rope + r * ldr + h * rope_stride; NULL where d_rope is 0 */
    int64_t ldr, rope_stride;
    float *o; /* [n_rows][H][d_latent] */
    const gm_rows *rows;
    gm_latent_cache cache;
    int32_t n_heads, pool, n_select;
    bool tail;
    const gm_pool_pos *sel; /* [n_rows][n_select] */
    const int32_t *n_sel;   /* [n_rows] */
    float scale;
    gm_device *dev;
    void *workspace; /* gm_mla_attn_workspace() bytes, 64-byte aligned */
} gm_mla_attn_args;
int64_t gm_mla_attn_workspace(gm_device *dev, int32_t n_heads, int32_t n_select, int32_t pool, int32_t d_latent,
                              int32_t d_rope);
void gm_mla_attn(const gm_mla_attn_args *a);
#endif
