#include "ops/mhc_mix/mhc_mix.h"
#include "ops/test_util.h"

typedef struct data {
    int32_t n, S, d, values;
    float *h, *fn, *base, *norm_w, scale[3];
    uint16_t *fn16;
    gm_matrix m;
} data;

static data make(int32_t n, int32_t S, int32_t d, bool bf16)
{
    data x = {.n = n, .S = S, .d = d, .values = S * (2 + S), .scale = {0.7f, -1.1f, 1.3f}};
    size_t cells = (size_t)(x.values * S * d);
    x.h = tu_normal((size_t)(n * S * d), 1, 1);
    x.fn = tu_normal(cells, 3.0f / sqrtf((float)(S * d)), 2);
    x.base = tu_normal((size_t)x.values, 1, 3);
    x.norm_w = tu_normal((size_t)d, 1, 4);
    x.fn16 = tu_bytes(cells * 2);
    for (size_t i = 0; i < cells; i++) x.fn16[i] = gm_f32_to_bf16(x.fn[i]);
    if (bf16)
        for (size_t i = 0; i < cells; i++) x.fn[i] = gm_bf16_to_f32(x.fn16[i]);
    x.m = (gm_matrix){.data = bf16 ? (void *)x.fn16 : (void *)x.fn, .dtype = bf16 ? GM_BF16 : GM_F32,
                      .rows = x.values, .cols = S * d};
    return x;
}

static void drop(data *x)
{
    free(x->h), free(x->fn), free(x->base), free(x->norm_w), free(x->fn16);
}

static void pre(gm_isa isa, const data *x, const float *h, int32_t n, float *y, float *post, float *comb)
{
    int64_t before = gm_variant_count(GM_OP_mhc_pre, isa);
    gm_mhc_pre(&(gm_mhc_pre_args){.h = h, .fn = &x->m, .base = x->base, .scale = x->scale, .norm_w = x->norm_w,
                                  .y = y, .post = post, .comb = comb, .n = n, .n_streams = x->S, .d = x->d,
                                  .iters = 20, .rms_eps = 1e-5f, .hc_eps = 1e-6f, .dev = tu_device(isa, 3)});
    tu_ran(GM_OP_mhc_pre, isa, before);
}

/* The formulas in double, step by step. */
static void want_pre(const data *x, int32_t t, double *y, double *post, double *C)
{
    int32_t S = x->S, d = x->d;
    const float *h = x->h + t * S * d;
    double m[80], p[8], sum = 0;
    for (int32_t i = 0; i < S * d; i++) sum += (double)h[i] * (double)h[i];
    double r = 1 / sqrt(sum / (S * d) + 1e-5);
    for (int32_t v = 0; v < x->values; v++) {
        m[v] = 0;
        for (int32_t i = 0; i < S * d; i++) m[v] += (double)x->fn[v * S * d + i] * (double)h[i] * r;
        m[v] = m[v] * (double)x->scale[v < S ? 0 : v < 2 * S ? 1 : 2] + (double)x->base[v];
    }
    for (int32_t s = 0; s < S; s++) p[s] = 1 / (1 + exp(-m[s])) + 1e-6;
    for (int32_t s = 0; s < S; s++) post[s] = 2 / (1 + exp(-m[S + s]));
    for (int32_t i = 0; i < S; i++) {
        double z = 0;
        for (int32_t j = 0; j < S; j++) z += exp(m[2 * S + i * S + j]);
        for (int32_t j = 0; j < S; j++) C[i * S + j] = exp(m[2 * S + i * S + j]) / z + 1e-6;
    }
    for (int it = 0; it < 20; it++) {
        for (int32_t i = 0; i < S && it; i++) {
            double z = 1e-6;
            for (int32_t j = 0; j < S; j++) z += C[i * S + j];
            for (int32_t j = 0; j < S; j++) C[i * S + j] /= z;
        }
        for (int32_t j = 0; j < S; j++) {
            double z = 1e-6;
            for (int32_t i = 0; i < S; i++) z += C[i * S + j];
            for (int32_t i = 0; i < S; i++) C[i * S + j] /= z;
        }
    }
    double q = 0;
    for (int32_t k = 0; k < d; k++) {
        y[k] = 0;
        for (int32_t s = 0; s < S; s++) y[k] += p[s] * (double)h[s * d + k];
        q += y[k] * y[k];
    }
    for (int32_t k = 0; k < d; k++) y[k] *= (double)x->norm_w[k] / sqrt(q / d + 1e-5);
}

static void near(const char *what, const float *got, const double *want, int32_t n, double tol)
{
    for (int32_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tol * (1 + fabs(want[i]))))
            fail_msg("%s[%d]: got %.9g, want %.9g", what, i, (double)got[i], want[i]);
}

static void test_pre(void **state)
{
    (void)state;
    static const int32_t shapes[][3] = {{1, 4, 64}, {3, 4, 33}, {9, 2, 7}, {70, 4, 20}, {5, 1, 129}, {2, 8, 24}};
    for (size_t i = 0; i < TU_LEN(shapes); i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            data x = make(shapes[i][0], shapes[i][1], shapes[i][2], bf16);
            int32_t n = x.n, S = x.S, d = x.d;
            TU_EACH_ISA(isa) {
                float *y = tu_nan((size_t)(n * d)), *post = tu_nan((size_t)(n * S)), *comb = tu_nan((size_t)(n * S * S));
                pre(isa, &x, x.h, n, y, post, comb);
                for (int32_t t = 0; t < n; t++) {
                    double wy[256], wp[8], wc[64];
                    want_pre(&x, t, wy, wp, wc);
                    near("y", y + t * d, wy, d, 1e-5);
                    near("post", post + t * S, wp, S, 1e-5);
                    near("comb", comb + t * S * S, wc, S * S, 1e-5);
                    /* alone: the same bits */
                    float y1[256], p1[8], c1[64];
                    pre(isa, &x, x.h + t * S * d, 1, y1, p1, c1);
                    tu_same("y alone", y1, y + t * d, (size_t)d * 4);
                    tu_same("post alone", p1, post + t * S, (size_t)S * 4);
                    tu_same("comb alone", c1, comb + t * S * S, (size_t)(S * S) * 4);
                }
                free(y), free(post), free(comb);
            }
            drop(&x);
        }
}

/* An asymmetric C: new stream j collects C[i][j] of old i, not the transpose. */
static void test_post_and_mean(void **state)
{
    (void)state;
    static const int32_t shapes[][3] = {{1, 4, 64}, {3, 4, 1030}, {5, 3, 7}, {2, 8, 513}};
    for (size_t q = 0; q < TU_LEN(shapes); q++)
        TU_EACH_ISA(isa) {
            int32_t n = shapes[q][0], S = shapes[q][1], d = shapes[q][2];
            size_t all = (size_t)(n * S * d);
            float *h = tu_normal(all, 1, 1), *y = tu_normal((size_t)(n * d), 1, 2), *z = tu_copy(h, all);
            float *post = tu_normal((size_t)(n * S), 1, 3), *comb = tu_normal((size_t)(n * S * S), 1, 4);
            int64_t before = gm_variant_count(GM_OP_mhc_post, isa);
            gm_mhc_post(&(gm_mhc_post_args){.h = z, .y = y, .post = post, .comb = comb, .n = n, .n_streams = S, .d = d,
                                            .dev = tu_device(isa, 2)});
            tu_ran(GM_OP_mhc_post, isa, before);
            for (int32_t t = 0; t < n; t++)
                for (int32_t j = 0; j < S; j++)
                    for (int32_t k = 0; k < d; k++) {
                        double want = (double)post[t * S + j] * (double)y[t * d + k];
                        for (int32_t i = 0; i < S; i++)
                            want += (double)comb[(t * S + i) * S + j] * (double)h[(t * S + i) * d + k];
                        assert_true(fabs((double)z[(t * S + j) * d + k] - want) < 1e-5);
                    }
            int32_t rows[2] = {n - 1, 0};
            float *mean = tu_nan((size_t)(2 * d)), *all_rows = tu_nan((size_t)(n * d));
            before = gm_variant_count(GM_OP_mhc_mean, isa);
            gm_mhc_mean(&(gm_mhc_mean_args){.h = h, .rows = rows, .y = mean, .n_out = 2, .n_streams = S, .d = d,
                                            .dev = tu_device(isa, 2)});
            gm_mhc_mean(&(gm_mhc_mean_args){.h = h, .y = all_rows, .n_out = n, .n_streams = S, .d = d,
                                            .dev = tu_device(isa, 2)});
            tu_ran(GM_OP_mhc_mean, isa, before);
            for (int32_t k = 0; k < d; k++) {
                double want = 0;
                for (int32_t s = 0; s < S; s++) want += (double)h[((n - 1) * S + s) * d + k] / S;
                assert_true(fabs((double)mean[k] - want) < 1e-6);
            }
            tu_same("mean by row list", mean, all_rows + (n - 1) * d, (size_t)d * 4);
            tu_same("mean by row list", mean + d, all_rows, (size_t)d * 4);
            free(h), free(y), free(z), free(post), free(comb), free(mean), free(all_rows);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pre), cmocka_unit_test(test_post_and_mean)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
