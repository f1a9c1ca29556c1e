#include "ops/residual_add/residual_add.h"
#include "ops/test_util.h"

static void test_variants(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 7, 8, 63, 100, 4096, 70001};
    for (size_t i = 0; i < TU_LEN(sizes); i++) {
        size_t n = (size_t)sizes[i];
        float *h = tu_normal(n + 1, 1, 1), *y = tu_normal(n, 1, 2);
        TU_EACH_ISA(isa) {
            int64_t before = gm_variant_count(GM_OP_residual_add, isa);
            float *z = tu_copy(h, n + 1);
            gm_residual_add(&(gm_residual_add_args){.h = z, .y = y, .n = sizes[i], .dev = tu_device(isa, 3)});
            tu_ran(GM_OP_residual_add, isa, before);
            for (size_t k = 0; k < n; k++) assert_true(z[k] == h[k] + y[k]);
            assert_true(z[n] == h[n]);
            free(z);
        }
        free(h), free(y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
