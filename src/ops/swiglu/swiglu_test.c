#include "ops/swiglu/swiglu.h"
#include "ops/test_util.h"

static double want_of(double g, double u, double limit)
{
    if (limit > 0) {
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
    }
    return g / (1 + exp(-g)) * u;
}

/* The gate is clamped from above only: inputs lie far on both sides of the limit. */
static void test_variants(void **state)
{
    (void)state;
    static const int32_t widths[] = {1, 5, 8, 17, 512, 513, 2048, 1100};
    for (size_t i = 0; i < TU_LEN(widths); i++)
        for (int clamp = 0; clamp < 2; clamp++) {
            int32_t d = widths[i], n = 3, ld = d + 3;
            float limit = clamp ? 10.0f : 0.0f;
            float *g = tu_normal((size_t)(n * ld), 15, i), *u = tu_normal((size_t)(n * ld), 15, i + 100);
            g[0] = -1000.0f;
            g[d - 1] = 1000.0f;
            TU_EACH_ISA(isa) {
                int64_t before = gm_variant_count(GM_OP_swiglu, isa);
                float *y = tu_nan((size_t)(n * ld)), *z = tu_copy(g, (size_t)(n * ld));
                gm_swiglu_args a = {.g = g, .u = u, .y = y, .n = n, .d = d, .ldg = ld, .ldu = ld, .ldy = ld,
                                    .limit = limit, .dev = tu_device(isa, 2)};
                gm_swiglu(&a);
                tu_ran(GM_OP_swiglu, isa, before);
                for (int32_t r = 0; r < n; r++) {
                    for (int32_t c = 0; c < d; c++) {
                        double want = want_of((double)g[r * ld + c], (double)u[r * ld + c], (double)limit);
                        double got = (double)y[r * ld + c];
                        if (!(fabs(got - want) <= 3e-6 * fabs(want) + 1e-30))
                            fail_msg("[%d][%d]: got %.9g, want %.9g", r, c, got, want);
                    }
                    for (int32_t c = d; c < ld; c++) assert_true(isnan(y[r * ld + c]));
                }
                gm_swiglu_args b = {.g = z + ld, .u = u + ld, .y = z + ld, .n = 1, .d = d, .ldg = ld, .ldu = ld,
                                    .ldy = ld, .limit = limit, .dev = tu_device(isa, 1)};
                gm_swiglu(&b);
                tu_same("row alone, in place", z + ld, y + ld, (size_t)d * 4);
                free(y), free(z);
            }
            free(g), free(u);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
