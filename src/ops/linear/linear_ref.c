#include "ops/linear/linear_internal.h"

static float dot(const gm_matrix *w, int32_t row, const float *x)
{
    float sum = 0;
    int64_t first = (int64_t)row * w->cols;
    if (w->dtype == GM_F32) {
        const float *p = (const float *)w->data + first;
        for (int32_t k = 0; k < w->cols; k++) sum += x[k] * p[k];
    } else if (w->dtype == GM_BF16) {
        const uint16_t *p = (const uint16_t *)w->data + first;
        for (int32_t k = 0; k < w->cols; k++) sum += x[k] * gm_bf16_to_f32(p[k]);
    } else {
        const uint8_t *p = (const uint8_t *)w->data + first;
        const float *scale = w->scale + (int64_t)((w->row0 + row) / w->block_rows) * w->scale_cols;
        for (int32_t b = 0; b < w->cols; b += w->block_cols) {
            float part = 0;
            for (int32_t k = b; k < w->cols && k < b + w->block_cols; k++) part += x[k] * gm_e4m3_to_f32(p[k]);
            sum += part * scale[b / w->block_cols];
        }
    }
    return sum;
}

static void part_ref(const gm_linear_part *p)
{
    for (int32_t t = 0; t < p->n; t++) {
        const float *x = (const float *)p->x + (p->x_rows ? p->x_rows[t] : t) * p->ldx;
        float *y = p->y + t * p->ldy;
        for (int32_t row = p->row_begin; row < p->row_end; row++) {
            float v = dot(p->w, row, x);
            y[row - p->row_begin] = p->accumulate ? y[row - p->row_begin] + v : v;
        }
    }
}

static void round_ref(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = gm_round_bf16(from[i]);
}

const gm_linear_impl gm_linear_impl_ref = {part_ref, round_ref, NULL};
