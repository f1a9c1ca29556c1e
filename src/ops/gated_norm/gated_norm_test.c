#include "ops/gated_norm/gated_norm.h"
#include "ops/test_util.h"

static void run(gm_isa isa, const float *x, const float *g, const float *w, float *y, int32_t n, int32_t H, int32_t D)
{
    int64_t before = gm_variant_count(GM_OP_gated_norm, isa);
    gm_gated_norm_args a = {.x = x, .g = g, .w = w, .y = y, .n = n, .n_heads = H, .d_head = D, .eps = 1e-5f,
                            .dev = tu_device(isa, 2)};
    gm_gated_norm(&a);
    tu_ran(GM_OP_gated_norm, isa, before);
}

static void test_variants(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{1, 1}, {3, 7}, {5, 16}, {2, 33}, {64, 128}, {3, 130}};
    for (size_t i = 0; i < TU_LEN(shapes); i++) {
        int32_t H = shapes[i][0], D = shapes[i][1], n = 3;
        size_t all = (size_t)(n * H * D);
        float *x = tu_normal(all, 1, i), *g = tu_normal(all, 30, 5 + i), *w = tu_normal((size_t)D, 1, 3);
        float *want = tu_nan(all);
        for (int32_t r = 0; r < n * H; r++) {
            double sum = 0;
            for (int32_t c = 0; c < D; c++) sum += (double)x[r * D + c] * (double)x[r * D + c];
            for (int32_t c = 0; c < D; c++)
                want[r * D + c] = (float)((double)x[r * D + c] / sqrt(sum / D + 1e-5) * (double)w[c] /
                                          (1 + exp(-(double)g[r * D + c])));
        }
        TU_EACH_ISA(isa) {
            float *y = tu_nan(all);
            run(isa, x, g, w, y, n, H, D);
            tu_near("gated_norm", y, want, all, 4e-6, 1e-30);
            float *z = tu_copy(x, all);
            size_t row = (size_t)(H * D);
            run(isa, z + row, g + row, w, z + row, 1, H, D);
            tu_same("row alone, in place", z + row, y + row, row * 4);
            free(z), free(y);
        }
        free(x), free(g), free(w), free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
