#include "ops/embed/embed.h"
#include "ops/test_util.h"

static void test_rows_and_copies(void **state)
{
    (void)state;
    enum { VOCAB = 9, N = 4 };
    static const int32_t ids[N] = {8, 0, 3, 3};
    static const int32_t widths[] = {1, 7, 8, 64, 131};
    for (size_t i = 0; i < TU_LEN(widths); i++)
        for (int32_t copies = 1; copies <= 4; copies += 3)
            TU_EACH_ISA(isa) {
                int32_t d = widths[i];
                float *t = tu_normal((size_t)(VOCAB * d), 1, 3), *y = tu_nan((size_t)(N * copies * d + 1));
                uint16_t *h = tu_bytes((size_t)(VOCAB * d) * 2);
                for (int32_t k = 0; k < VOCAB * d; k++) h[k] = gm_f32_to_bf16(t[k]);
                for (int bf16 = 0; bf16 < 2; bf16++) {
                    gm_matrix m = {.data = bf16 ? (void *)h : (void *)t, .dtype = bf16 ? GM_BF16 : GM_F32,
                                   .rows = VOCAB, .cols = d};
                    gm_embed(&(gm_embed_args){.table = &m, .ids = ids, .y = y, .n = N, .n_copies = copies,
                                              .dev = tu_device(isa, 2)});
                    for (int32_t r = 0; r < N; r++)
                        for (int32_t s = 0; s < copies; s++)
                            for (int32_t c = 0; c < d; c++) {
                                float want = t[ids[r] * d + c];
                                if (bf16) want = gm_round_bf16(want);
                                assert_true(y[(r * copies + s) * d + c] == want);
                            }
                    assert_true(isnan(y[N * copies * d]));
                }
                free(t), free(y), free(h);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_and_copies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
