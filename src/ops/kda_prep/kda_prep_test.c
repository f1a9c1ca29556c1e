#include "ops/kda_prep/kda_prep.h"
#include "ops/test_util.h"

typedef struct data {
    int32_t n, H, D;
    int64_t ldq;
    float *q, *k, *f, *b, *A_log, *dt_bias;
} data;

static data make(int32_t n, int32_t H, int32_t D)
{
    data x = {.n = n, .H = H, .D = D, .ldq = 3 * H * D + 1};
    x.q = tu_normal((size_t)(n * x.ldq), 1, 1);
    x.k = x.q + H * D;
    x.f = tu_normal((size_t)(n * H * D), 4, 2);
    x.b = tu_normal((size_t)(n * H), 4, 3);
    x.A_log = tu_normal((size_t)H, 1, 4);
    x.dt_bias = tu_normal((size_t)(H * D), 1, 5);
    if (n > 1) {
        memset(x.q + x.ldq, 0, (size_t)D * 4); /* an all-zero q: the epsilon keeps it finite */
        x.f[H * D] = -500.0f;
        x.f[H * D + D - 1] = 500.0f;
    }
    return x;
}

static void run(gm_isa isa, const data *x, float *q, float *decay, float *beta)
{
    int64_t before = gm_variant_count(GM_OP_kda_prep, isa);
    gm_kda_prep(&(gm_kda_prep_args){.q = q, .k = q + x->H * x->D, .f = x->f, .b = x->b, .A_log = x->A_log,
                                    .dt_bias = x->dt_bias, .decay = decay, .beta = beta, .n = x->n, .n_heads = x->H,
                                    .d_head = x->D, .ldq = x->ldq, .lower = -5.0f, .dev = tu_device(isa, 2)});
    tu_ran(GM_OP_kda_prep, isa, before);
}

static void near(const char *what, float got, double want)
{
    if (!(fabs((double)got - want) <= 4e-6 * fabs(want) + 1e-30))
        fail_msg("%s: got %.9g, want %.9g", what, (double)got, want);
}

static void check(const data *x, const float *q, const float *decay, const float *beta)
{
    for (int32_t r = 0; r < x->n; r++)
        for (int32_t h = 0; h < x->H; h++) {
            double qq = 1e-6, kk = 1e-6;
            const float *q0 = x->q + r * x->ldq + h * x->D, *k0 = x->k + r * x->ldq + h * x->D;
            for (int32_t c = 0; c < x->D; c++) {
                qq += (double)q0[c] * (double)q0[c];
                kk += (double)k0[c] * (double)k0[c];
            }
            for (int32_t c = 0; c < x->D; c++) {
                int64_t at = (r * x->H + h) * (int64_t)x->D + c;
                near("q", q[r * x->ldq + h * x->D + c], (double)q0[c] / sqrt(qq) / sqrt(x->D));
                near("k", q[r * x->ldq + x->H * x->D + h * x->D + c], (double)k0[c] / sqrt(kk));
                double s = exp((double)x->A_log[h]) * ((double)x->f[at] + (double)x->dt_bias[h * x->D + c]);
                /* FP32 rounding of s counts where exp is steep: |s| up to 100 or so is meant */
                double want = exp(-5 / (1 + exp(-s)));
                double got = (double)decay[at];
                if (!(fabs(got - want) <= 2e-5 * want)) fail_msg("decay: got %.9g, want %.9g", got, want);
                assert_true(got > 0.0067 && got <= 1.0);
            }
            near("beta", beta[r * x->H + h], 1 / (1 + exp(-(double)x->b[r * x->H + h])));
        }
}

static void test_variants(void **state)
{
    (void)state;
    static const int32_t shapes[][3] = {{1, 1, 4}, {3, 5, 16}, {2, 3, 33}, {3, 64, 128}};
    for (size_t i = 0; i < TU_LEN(shapes); i++) {
        data x = make(shapes[i][0], shapes[i][1], shapes[i][2]);
        size_t q_all = (size_t)(x.n * x.ldq), d_all = (size_t)(x.n * x.H * x.D), b_all = (size_t)(x.n * x.H);
        TU_EACH_ISA(isa) {
            float *q = tu_copy(x.q, q_all), *decay = tu_nan(d_all), *beta = tu_nan(b_all);
            run(isa, &x, q, decay, beta);
            check(&x, q, decay, beta);
            /* v and the padding stay */
            for (int32_t r = 0; r < x.n; r++)
                tu_same("v", q + r * x.ldq + 2 * x.H * x.D, x.q + r * x.ldq + 2 * x.H * x.D,
                        (size_t)(x.H * x.D + 1) * 4);
            /* decay over f and beta over b, last row alone */
            data y = x;
            int64_t last = x.n - 1;
            float *f = tu_copy(x.f, d_all), *b = tu_copy(x.b, b_all), *q2 = tu_copy(x.q, q_all);
            y.n = 1;
            y.f = f + last * x.H * x.D;
            y.b = b + last * x.H;
            run(isa, &y, q2 + last * x.ldq, f + last * x.H * x.D, b + last * x.H);
            tu_same("decay alone", f + last * x.H * x.D, decay + last * x.H * x.D, (size_t)(x.H * x.D) * 4);
            tu_same("beta alone", b + last * x.H, beta + last * x.H, (size_t)x.H * 4);
            tu_same("q alone", q2 + last * x.ldq, q + last * x.ldq, (size_t)x.ldq * 4);
            free(q), free(decay), free(beta), free(f), free(b), free(q2);
        }
        free(x.q), free(x.f), free(x.b), free(x.A_log), free(x.dt_bias);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
