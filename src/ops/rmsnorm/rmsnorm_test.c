#include "ops/rmsnorm/rmsnorm.h"
#include "ops/test_util.h"

static void run(gm_isa isa, int threads, const float *x, int64_t ldx, float *y, int64_t ldy, const float *w, int32_t n,
                int32_t d)
{
    int64_t before = gm_variant_count(GM_OP_rmsnorm, isa);
    gm_rmsnorm_args a = {.x = x, .y = y, .w = w, .n = n, .d = d, .ldx = ldx, .ldy = ldy, .eps = 1e-5f,
                         .dev = tu_device(isa, threads)};
    gm_rmsnorm(&a);
    tu_ran(GM_OP_rmsnorm, isa, before);
}

static void test_variants(void **state)
{
    (void)state;
    static const int32_t widths[] = {1, 3, 7, 8, 9, 31, 128, 130, 1536, 4096, 4099};
    for (size_t i = 0; i < TU_LEN(widths); i++) {
        int32_t d = widths[i], n = 5, ldx = d + 3, ldy = d + 5;
        float *x = tu_normal((size_t)(n * ldx), 2, 1 + i), *w = tu_normal((size_t)d, 1, 2 + i);
        float *want = tu_nan((size_t)(n * ldy));
        for (int32_t r = 0; r < n; r++) {
            double sum = 0;
            for (int32_t c = 0; c < d; c++) sum += (double)x[r * ldx + c] * (double)x[r * ldx + c];
            for (int32_t c = 0; c < d; c++)
                want[r * ldy + c] = (float)((double)x[r * ldx + c] / sqrt(sum / d + 1e-5) * (double)w[c]);
        }
        TU_EACH_ISA(isa) {
            float *y = tu_nan((size_t)(n * ldy));
            run(isa, 2, x, ldx, y, ldy, w, n, d);
            tu_near("rmsnorm", y, want, (size_t)(n * ldy), 2e-6, 1e-12);
            /* In place, and one row alone: the same bits. */
            float *z = tu_copy(x, (size_t)(n * ldx));
            run(isa, 1, z + 2 * ldx, ldx, z + 2 * ldx, ldx, w, 1, d);
            tu_same("row alone, in place", z + 2 * ldx, y + 2 * ldy, (size_t)d * 4);
            free(z);
            free(y);
        }
        free(x), free(w), free(want);
    }
}

static void test_nan_stays_in_its_row(void **state)
{
    (void)state;
    enum { D = 37 };
    TU_EACH_ISA(isa) {
        float *x = tu_normal(3 * D, 1, 5), *w = tu_normal(D, 1, 6), *y = tu_nan(3 * D);
        x[D + 36] = NAN;
        run(isa, 1, x, D, y, D, w, 3, D);
        for (int i = 0; i < D; i++)
            assert_true(isfinite(y[i]) && isnan(y[D + i]) && isfinite(y[2 * D + i]));
        free(x), free(w), free(y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants), cmocka_unit_test(test_nan_stays_in_its_row)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
