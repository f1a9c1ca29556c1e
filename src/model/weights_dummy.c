/* Made-up weights: each element is a function of (seed, tensor name, index), so that any machine, thread count and
 * loading order gives the same model. Matrices spread like 1/sqrt(fan-in), which keeps activations in range and lets
 * the router use all experts. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "model/model_internal.h"

/* FP8 codes are spread over E4M3's normal range; the block scales bring them down. */
#define FP8_SPREAD 16.0f

typedef struct fill_job {
    void *data;
    gm_st_dtype dtype;
    float scale;
    gm_fill fill;
    uint64_t seed;
} fill_job;

/* Uniform with variance 1: cheap, and the sums over a row are normal anyway. */
static float unit(uint64_t bits)
{
    return ((float)(bits >> 40) * 0x1p-23f - 1.0f) * 1.7320508f;
}

static float value(const fill_job *j, int64_t i)
{
    float u = unit(gm_mix64(j->seed, (uint64_t)i));
    switch (j->fill) {
    case GM_FILL_ONES: return 1.0f + 0.05f * u;
    case GM_FILL_BIAS: return 0.05f * u;
    case GM_FILL_A_LOG: return logf(4.5f + 2.0f * u); /* 1 .. 8 */
    case GM_FILL_SCALE: return j->scale / FP8_SPREAD;
    case GM_FILL_MATRIX: break;
    }
    return u * (j->dtype == GM_ST_F8_E4M3 ? FP8_SPREAD : j->scale);
}

static void fill_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    const fill_job *j = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float x = value(j, i);
        if (j->dtype == GM_ST_F32) ((float *)j->data)[i] = x;
        else if (j->dtype == GM_ST_BF16) ((uint16_t *)j->data)[i] = gm_f32_to_bf16(x);
        else ((uint8_t *)j->data)[i] = gm_f32_to_e4m3(x);
    }
}

void gm_dummy_fill(void *data, gm_st_dtype dtype, int64_t n, int64_t fan_in, gm_fill fill, uint64_t seed, const char *name,
                   gm_device *dev)
{
    uint64_t h = seed;
    for (const char *c = name; *c; c++) h = gm_mix64(h, (uint8_t)*c);
    fill_job j = {data, dtype, 1.0f / sqrtf((float)fan_in), fill, h};
    gm_device_parallel(dev, n, 1 << 16, fill_range, &j);
}
