#include "ops/moe_experts/moe_experts.h"
#include "ops/test_util.h"

typedef struct data {
    int32_t n, d, f, E, k;
    gm_dtype type;
    float *x, *weights, *scale;
    int32_t *ids;
    void *w[3];
    gm_matrix *m[3]; /* gate, up, down */
} data;

static float value(const data *x, int which, int32_t e, int32_t row, int32_t col)
{
    const gm_matrix *m = &x->m[which][e];
    int64_t at = (int64_t)row * m->cols + col;
    if (m->dtype == GM_F32) return ((const float *)m->data)[at];
    if (m->dtype == GM_BF16) return gm_bf16_to_f32(((const uint16_t *)m->data)[at]);
    return gm_e4m3_to_f32(((const uint8_t *)m->data)[at]) * m->scale[row / 128 * m->scale_cols + col / 128];
}

/* The first tokens all want experts 0 .. k-1, so that one expert has many; some slots are empty (-1). */
static data make(gm_dtype type, int32_t n, int32_t d, int32_t f, int32_t E, int32_t k)
{
    data x = {.n = n, .d = d, .f = f, .E = E, .k = k, .type = type};
    x.x = tu_normal((size_t)(n * d), 1, 1);
    x.weights = tu_normal((size_t)(n * k), 1, 2);
    x.ids = tu_bytes((size_t)(n * k) * sizeof *x.ids);
    gm_rng r;
    gm_rng_init(&r, 3);
    for (int32_t t = 0; t < n; t++) {
        int32_t have = 0;
        for (int32_t e = 0; e < E && have < k; e++)
            if (t % 3 == 0 || (int32_t)gm_rng_below(&r, (uint64_t)(E - e)) < k - have) x.ids[t * k + have++] = e;
        if (t % 5 == 4) x.ids[t * k + k - 1] = -1;
    }
    x.scale = tu_normal(64, 0.02f, 4);
    for (int i = 0; i < 3; i++) {
        int32_t rows = i == 2 ? d : f, cols = i == 2 ? f : d;
        size_t cells = (size_t)(E * rows * cols);
        float *v = tu_normal(cells, 1 / sqrtf((float)cols), 5 + (uint64_t)i);
        x.w[i] = tu_bytes(cells * (size_t)gm_dtype_size(type));
        x.m[i] = tu_bytes((size_t)E * sizeof(gm_matrix));
        for (size_t c = 0; c < cells; c++) {
            if (type == GM_F32) ((float *)x.w[i])[c] = v[c];
            else if (type == GM_BF16) ((uint16_t *)x.w[i])[c] = gm_f32_to_bf16(v[c]);
            else ((uint8_t *)x.w[i])[c] = gm_f32_to_e4m3(v[c] * 50);
        }
        for (int32_t e = 0; e < E; e++)
            x.m[i][e] = (gm_matrix){.data = (uint8_t *)x.w[i] + (int64_t)e * rows * cols * gm_dtype_size(type),
                                    .dtype = type, .rows = rows, .cols = cols, .scale = x.scale,
                                    .scale_cols = (cols + 127) / 128, .block_rows = 128, .block_cols = 128};
        free(v);
    }
    return x;
}

static void drop(data *x)
{
    free(x->x), free(x->weights), free(x->ids), free(x->scale);
    for (int i = 0; i < 3; i++) free(x->w[i]), free(x->m[i]);
}

static void run(gm_isa isa, int threads, const data *x, int32_t first, int32_t n, gm_act act, float *y)
{
    int64_t before = gm_variant_count(GM_OP_moe_experts, isa);
    gm_device *dev = tu_device(isa, threads);
    void *room = tu_workspace(gm_moe_experts_workspace(dev, n, x->d, x->f, x->E, x->k));
    gm_moe_experts(&(gm_moe_experts_args){.x = x->x + first * x->d, .y = y + first * x->d, .ids = x->ids + first * x->k,
                                          .weights = x->weights + first * x->k, .gate = x->m[0], .up = x->m[1],
                                          .down = x->m[2], .n = n, .d = x->d, .f = x->f, .n_experts = x->E,
                                          .n_active = x->k, .limit = 1.0f, .act = act, .dev = dev, .workspace = room});
    tu_ran(GM_OP_moe_experts, isa, before);
    free(room);
}

/* In double, with the roundings that act asks for. FP32 sums may round a hidden value to the other BF16 neighbour:
 * that is what the wider bound is for. */
static void want_row(const data *x, int32_t t, gm_act act, double *y, double *size)
{
    bool bf16 = act == GM_ACT_BF16;
    double *h = tu_bytes((size_t)x->f * sizeof *h);
    for (int32_t c = 0; c < x->d; c++) y[c] = 0.25, size[c] = 0;
    for (int32_t i = 0; i < x->k; i++) {
        int32_t e = x->ids[t * x->k + i];
        if (e < 0) continue;
        for (int32_t r = 0; r < x->f; r++) {
            double g = 0, u = 0;
            for (int32_t c = 0; c < x->d; c++) {
                float v = x->x[t * x->d + c];
                if (bf16) v = gm_round_bf16(v);
                g += (double)v * (double)value(x, 0, e, r, c);
                u += (double)v * (double)value(x, 1, e, r, c);
            }
            g = g > 1 ? 1 : g;
            u = u > 1 ? 1 : u < -1 ? -1 : u;
            h[r] = g / (1 + exp(-g)) * u;
            if (bf16) h[r] = (double)gm_round_bf16((float)h[r]);
        }
        for (int32_t c = 0; c < x->d; c++)
            for (int32_t r = 0; r < x->f; r++) {
                double p = (double)x->weights[t * x->k + i] * h[r] * (double)value(x, 2, e, c, r);
                y[c] += p;
                size[c] += fabs(p);
            }
    }
    free(h);
}

static void one(gm_dtype type, int32_t n, int32_t d, int32_t f, int32_t E, int32_t k)
{
    data x = make(type, n, d, f, E, k);
    double *want = tu_bytes((size_t)d * sizeof *want), *size = tu_bytes((size_t)d * sizeof *size);
    for (int act = 0; act < 2; act++)
        TU_EACH_ISA(isa) {
            float *y = tu_bytes((size_t)(n * d) * 4), *alone = tu_bytes((size_t)(n * d) * 4);
            for (int32_t i = 0; i < n * d; i++) y[i] = alone[i] = 0.25f;
            run(isa, 3, &x, 0, n, (gm_act)act, y);
            for (int32_t t = 0; t < n; t++) {
                want_row(&x, t, (gm_act)act, want, size);
                for (int32_t c = 0; c < d; c++) {
                    double off = fabs((double)y[t * d + c] - want[c]);
                    if (!(off <= (act ? 1e-3 : 2e-5) * (size[c] + 0.25)))
                        fail_msg("token %d, %d: got %g, want %g", t, c, (double)y[t * d + c], want[c]);
                }
                run(isa, 1, &x, t, 1, (gm_act)act, alone);
            }
            tu_same("token alone", alone, y, (size_t)(n * d) * 4);
            free(y), free(alone);
        }
    free(want), free(size);
    drop(&x);
}

/* Token counts around every change of kernel. */
static void test_batches(void **state)
{
    (void)state;
    static const int32_t batches[] = {1, 2, 3, 4, 5, 8, 16, 17, 32, 33};
    for (size_t i = 0; i < TU_LEN(batches); i++)
        for (gm_dtype t = GM_F32; t <= GM_F8E4M3; t++) one(t, batches[i], 40, 72, 6, 2);
}

static void test_shapes(void **state)
{
    (void)state;
    for (gm_dtype t = GM_F32; t <= GM_F8E4M3; t++) {
        one(t, 5, 7, 5, 3, 3);
        one(t, 9, 130, 140, 9, 4);
        one(t, 3, 260, 33, 288, 8);
    }
}

/* More tokens than a pass takes, all for one expert. */
static void test_many_tokens(void **state)
{
    (void)state;
    one(GM_BF16, 530, 9, 10, 2, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_batches), cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_many_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
