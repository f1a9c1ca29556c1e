#include "ops/layernorm/layernorm.h"
#include "ops/test_util.h"

static void run(gm_isa isa, const float *x, int64_t ldx, float *y, int64_t ldy, const float *w, const float *b, int32_t n,
                int32_t d, bool round)
{
    int64_t before = gm_variant_count(GM_OP_layernorm, isa);
    gm_layernorm_args a = {.x = x, .y = y, .w = w, .b = b, .n = n, .d = d, .ldx = ldx, .ldy = ldy, .eps = 1e-6f,
                           .round_bf16 = round, .dev = tu_device(isa, 2)};
    gm_layernorm(&a);
    tu_ran(GM_OP_layernorm, isa, before);
}

/* The mean is taken off (a root-mean-square norm would not) and the input has one to show it. */
static void test_variants(void **state)
{
    (void)state;
    static const int32_t widths[] = {2, 5, 8, 31, 128, 129, 200};
    for (size_t i = 0; i < TU_LEN(widths); i++) {
        int32_t d = widths[i], n = 4, ldx = d + 1, ldy = d + 2;
        float *x = tu_normal((size_t)(n * ldx), 1, i), *w = tu_normal((size_t)d, 1, 9), *b = tu_normal((size_t)d, 1, 8);
        for (int32_t k = 0; k < n * ldx; k++) x[k] += 3.0f;
        float *want = tu_nan((size_t)(n * ldy));
        for (int32_t r = 0; r < n; r++) {
            double mean = 0, var = 0;
            for (int32_t c = 0; c < d; c++) mean += (double)x[r * ldx + c] / d;
            for (int32_t c = 0; c < d; c++) var += pow((double)x[r * ldx + c] - mean, 2) / d;
            for (int32_t c = 0; c < d; c++)
                want[r * ldy + c] =
                    (float)(((double)x[r * ldx + c] - mean) / sqrt(var + 1e-6) * (double)w[c] + (double)b[c]);
        }
        TU_EACH_ISA(isa) {
            float *y = tu_nan((size_t)(n * ldy));
            run(isa, x, ldx, y, ldy, w, b, n, d, false);
            tu_near("layernorm", y, want, (size_t)(n * ldy), 4e-6, 4e-6);
            float *z = tu_copy(x, (size_t)(n * ldx));
            run(isa, z + ldx, ldx, z + ldx, ldx, w, b, 1, d, true);
            for (int32_t c = 0; c < d; c++) {
                float rounded = gm_round_bf16(y[ldy + c]);
                tu_same("rounded, alone, in place", &z[ldx + c], &rounded, 4);
            }
            free(z), free(y);
        }
        free(x), free(w), free(b), free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
