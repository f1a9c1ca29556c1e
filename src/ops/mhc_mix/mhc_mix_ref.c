#include "ops/mhc_mix/mhc_mix_internal.h"

#include <math.h>

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static float dot(const gm_matrix *fn, int64_t v, const float *f)
{
    float sum = 0;
    for (int32_t k = 0; k < fn->cols; k++) {
        int64_t at = v * fn->cols + k;
        float w = fn->dtype == GM_F32 ? ((const float *)fn->data)[at] : gm_bf16_to_f32(((const uint16_t *)fn->data)[at]);
        sum += w * f[k];
    }
    return sum;
}

void gm_mhc_dot_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_mhc_pre_job *j = args;
    const gm_matrix *fn = j->a->fn;
    int64_t groups = (fn->rows + j->group - 1) / j->group;
    for (int64_t item = begin; item < end; item++) {
        int64_t v0 = item % groups * j->group, t0 = item / groups * GM_MHC_TILE;
        for (int64_t t = t0; t < j->n && t < t0 + GM_MHC_TILE; t++)
            for (int64_t v = v0; v < fn->rows && v < v0 + j->group; v++)
                j->m[t * fn->rows + v] = dot(fn, v, j->a->h + (j->t_begin + t) * fn->cols);
    }
}

void gm_mhc_coefficients(const gm_mhc_pre_args *a, const float *m, float r, float *pre, float *post, float *comb)
{
    int32_t S = a->n_streams;
    float eps = a->hc_eps;
    for (int32_t s = 0; s < S; s++) pre[s] = sigmoid(a->scale[0] * (r * m[s]) + a->base[s]) + eps;
    for (int32_t s = 0; s < S; s++) post[s] = 2.0f * sigmoid(a->scale[1] * (r * m[S + s]) + a->base[S + s]);

    for (int32_t i = 0; i < S; i++) {
        float *c = comb + i * S, max = -INFINITY, sum = 0;
        for (int32_t j = 0; j < S; j++) {
            int32_t at = 2 * S + S * i + j;
            c[j] = a->scale[2] * (r * m[at]) + a->base[at];
            if (c[j] > max) max = c[j];
        }
        for (int32_t j = 0; j < S; j++) sum += c[j] = expf(c[j] - max);
        for (int32_t j = 0; j < S; j++) c[j] = c[j] / sum + eps;
    }
    /* Sinkhorn: the first round has no row step, and every round ends on the columns. */
    for (int32_t it = 0; it < a->iters; it++) {
        for (int32_t i = 0; i < S && it > 0; i++) {
            float sum = 0;
            for (int32_t j = 0; j < S; j++) sum += comb[i * S + j];
            for (int32_t j = 0; j < S; j++) comb[i * S + j] /= sum + eps;
        }
        for (int32_t j = 0; j < S; j++) {
            float sum = 0;
            for (int32_t i = 0; i < S; i++) sum += comb[i * S + j];
            for (int32_t i = 0; i < S; i++) comb[i * S + j] /= sum + eps;
        }
    }
}

void gm_mhc_pre_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_mhc_pre_job *job = args;
    const gm_mhc_pre_args *a = job->a;
    int32_t S = a->n_streams, d = a->d, n_values = S * (2 + S);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = job->t_begin + i;
        const float *h = a->h + t * S * d;
        float *y = a->y + t * d, sum = 0, pre[GM_STREAMS_MAX];
        for (int32_t k = 0; k < S * d; k++) sum += h[k] * h[k];
        float r = 1.0f / sqrtf(sum / (float)(S * d) + a->rms_eps);
        gm_mhc_coefficients(a, job->m + i * n_values, r, pre, a->post + t * S, a->comb + t * S * S);

        float squares = 0;
        for (int32_t k = 0; k < d; k++) {
            float x = 0;
            for (int32_t s = 0; s < S; s++) x += pre[s] * h[s * d + k];
            y[k] = x;
            squares += x * x;
        }
        float scale = 1.0f / sqrtf(squares / (float)d + a->rms_eps);
        for (int32_t k = 0; k < d; k++) y[k] = y[k] * scale * a->norm_w[k];
    }
}

void gm_mhc_post_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_mhc_post_args *a = args;
    int32_t S = a->n_streams, d = a->d;
    int64_t spans = ((int64_t)d + GM_MHC_SPAN - 1) / GM_MHC_SPAN;
    for (int64_t item = begin; item < end; item++) {
        int64_t t = item / spans, first = item % spans * GM_MHC_SPAN;
        int64_t last = first + GM_MHC_SPAN < d ? first + GM_MHC_SPAN : d;
        float *h = a->h + t * S * d;
        const float *post = a->post + t * S, *comb = a->comb + t * S * S;
        for (int64_t k = first; k < last; k++) {
            float old[GM_STREAMS_MAX];
            for (int32_t i = 0; i < S; i++) old[i] = h[i * d + k];
            for (int32_t j = 0; j < S; j++) {
                float v = post[j] * a->y[t * d + k];
                for (int32_t i = 0; i < S; i++) v += comb[i * S + j] * old[i];
                h[j * d + k] = v;
            }
        }
    }
}

void gm_mhc_mean_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_mhc_mean_args *a = args;
    int32_t S = a->n_streams, d = a->d;
    for (int64_t o = begin; o < end; o++) {
        int64_t t = a->rows ? a->rows[o] : o;
        const float *h = a->h + t * S * d;
        for (int32_t k = 0; k < d; k++) {
            float sum = 0;
            for (int32_t s = 0; s < S; s++) sum += h[s * d + k];
            a->y[o * d + k] = sum / (float)S;
        }
    }
}
