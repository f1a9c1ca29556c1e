#include "ops/rope/rope.h"
#include "ops/test_util.h"

/* Interleaved pairs; the half-split rule would pair x[j] with x[j + d/2]. Far positions keep their precision. */
static void test_against_complex_rotation(void **state)
{
    (void)state;
    static const int32_t dims[] = {2, 6, 64, 256};
    static const gm_pos pos[] = {{0}, {1}, {2047}, {1048575}};
    for (size_t i = 0; i < TU_LEN(dims); i++)
        TU_EACH_ISA(isa) {
            int32_t d = dims[i], H = 3, hs = d + 5, ld = H * hs + 2, n = 4;
            float *x = tu_normal((size_t)(n * ld), 1, i), *y = tu_copy(x, (size_t)(n * ld));
            gm_rope(&(gm_rope_args){.x = y, .ld = ld, .head_stride = hs, .pos = pos, .n = n, .n_heads = H, .d_rope = d,
                                    .theta = 8e6f, .dev = tu_device(isa, 2)});
            for (int32_t r = 0; r < n; r++)
                for (int32_t h = 0; h < H; h++)
                    for (int32_t j = 0; j < d / 2; j++) {
                        double t = pos[r].tok * pow(8e6, -2.0 * j / d);
                        const float *from = x + r * ld + h * hs + 2 * j;
                        double re = (double)from[0] * cos(t) - (double)from[1] * sin(t);
                        double im = (double)from[0] * sin(t) + (double)from[1] * cos(t);
                        assert_true(fabs((double)y[r * ld + h * hs + 2 * j] - re) < 1e-6 * 4);
                        assert_true(fabs((double)y[r * ld + h * hs + 2 * j + 1] - im) < 1e-6 * 4);
                        /* what lies between the heads stays */
                        x[r * ld + h * hs + 2 * j] = y[r * ld + h * hs + 2 * j];
                        x[r * ld + h * hs + 2 * j + 1] = y[r * ld + h * hs + 2 * j + 1];
                    }
            tu_same("outside the rotated values", y, x, (size_t)(n * ld) * 4);
            free(x), free(y);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_complex_rotation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
