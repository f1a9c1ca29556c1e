/* y[r][s][:] = table[ids[r]][:] for s < n_copies (the residual streams start as equal copies). */
#ifndef GM_OPS_EMBED_H
#define GM_OPS_EMBED_H
#include "ops/tensor.h"

typedef struct gm_embed_args {
    const gm_matrix *table; /* [vocab][d], F32 or BF16 */
    const int32_t *ids;     /* [n], each in 0 .. rows-1 (asserted) */
    float *y;               /* [n][n_copies][d] */
    int32_t n, n_copies;
    gm_device *dev;
} gm_embed_args;
void gm_embed(const gm_embed_args *a);
#endif
