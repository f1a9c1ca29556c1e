/* Write the latent rows of a step into the pages: row r, token pos[r] of its sequence (layout: gm_latent_cache).
 * Writes nothing outside the n_rows rows. */
#ifndef GM_OPS_KV_APPEND_H
#define GM_OPS_KV_APPEND_H
#include "ops/slice.h"
#include "ops/tensor.h"

typedef struct gm_kv_append_args {
    const float *c;  /* [n_rows][d_latent], stride ldc: normalised latent */
    const float *kr; /* [n_rows][d_rope], stride ldr: rotary key after rotation; NULL where d_rope is 0 */
    int64_t ldc, ldr;
    const gm_rows *rows;
    gm_latent_cache cache;
    gm_device *dev;
} gm_kv_append_args;
void gm_kv_append(const gm_kv_append_args *a);
#endif
