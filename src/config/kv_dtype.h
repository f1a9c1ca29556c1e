/* Precision of the cache, and the bytes of its two kinds of row. A property of the page layout: the allocator, the
 * ops, the start-up log, `inspect` and the planner all take it from here. */
#ifndef GM_CONFIG_KV_DTYPE_H
#define GM_CONFIG_KV_DTYPE_H

#include "base/status.h"

typedef enum gm_kv_dtype {
    GM_KV_F32,
    GM_KV_BF16,
    GM_KV_FP8,
    GM_KV_F16, /* index keys only: normalised values, which FP16 holds closer than BF16 in the same bytes */
} gm_kv_dtype;

/* The precision of index keys that goes with latent rows of precision t: FP32 or FP16. */
static inline gm_kv_dtype gm_kv_index_dtype(gm_kv_dtype t)
{
    return t == GM_KV_F32 ? GM_KV_F32 : GM_KV_F16;
}

/* "auto" (= bfloat16), "bfloat16", "fp8", "fp8_e4m3", "float32"; GM_EARG names the value and the choices. */
gm_status gm_kv_dtype_parse(gm_kv_dtype *out, const char *text, gm_error *err);
const char *gm_kv_dtype_name(gm_kv_dtype t); /* "bfloat16", "fp8_e4m3", "float32" */

/* Latent row. F32 or BF16: d_latent values, then d_rope values. FP8: d_latent E4M3 codes, one BF16 scale for each
 * GM_LATENT_GROUP of them, then d_rope BF16 values (672 bytes for 512 + 64). */
enum { GM_LATENT_GROUP = 32 };

static inline int64_t gm_latent_groups(int64_t d_latent)
{
    return (d_latent + GM_LATENT_GROUP - 1) / GM_LATENT_GROUP;
}

static inline int64_t gm_latent_row_bytes(gm_kv_dtype t, int32_t d_latent, int32_t d_rope)
{
    if (t == GM_KV_F32) return 4 * ((int64_t)d_latent + d_rope);
    if (t == GM_KV_BF16) return 2 * ((int64_t)d_latent + d_rope);
    return d_latent + 2 * gm_latent_groups(d_latent) + 2 * (int64_t)d_rope;
}

/* Index key. FP8 (as GPU servers keep them): d codes and one FP32 scale. */
static inline int64_t gm_index_key_bytes(gm_kv_dtype t, int32_t d)
{
    return t == GM_KV_F32 ? 4 * (int64_t)d : t == GM_KV_FP8 ? (int64_t)d + 4 : 2 * (int64_t)d;
}

#endif
