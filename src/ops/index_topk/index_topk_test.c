#include "ops/index_topk/index_topk.h"
#include "ops/test_util.h"

typedef struct ranked {
    float score;
    int32_t pool;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->pool - y->pool;
}

static int by_pool(const void *a, const void *b)
{
    return ((const ranked *)a)->pool - ((const ranked *)b)->pool;
}

/* One row against a full sort; a guard behind each array. */
static void check(gm_isa isa, const float *scores, int32_t visible, int32_t pool, int32_t n_select)
{
    gm_pos pos = {visible * pool + pool - 2};
    if (pool == 1) pos.tok = visible - 1;
    int32_t slice_of = 0, n_sel[2] = {-7, -7};
    gm_slice s = {.n = {1}};
    gm_rows rows = {1, &pos, &slice_of, &s, 1};
    gm_pool_pos *sel = tu_bytes((size_t)(n_select + 1) * sizeof *sel);
    for (int32_t i = 0; i <= n_select; i++) sel[i].pool = -7;
    int64_t before = gm_variant_count(GM_OP_index_topk, isa);
    gm_index_topk(&(gm_index_topk_args){.scores = scores, .lds = visible, .rows = &rows, .row_begin = 0, .row_end = 1,
                                        .pool = pool, .n_select = n_select, .sel = sel, .n_sel = n_sel,
                                        .dev = tu_device(isa, 1)});
    tu_ran(GM_OP_index_topk, isa, before);
    int32_t want_n = visible < n_select ? visible : n_select;
    assert_int_equal(n_sel[0], want_n);
    assert_int_equal(n_sel[1], -7);
    assert_int_equal(sel[n_select].pool, -7);
    for (int32_t i = want_n; i < n_select; i++) assert_int_equal(sel[i].pool, -1);
    if (visible <= n_select) {
        for (int32_t i = 0; i < visible; i++) assert_int_equal(sel[i].pool, i);
    } else {
        ranked *r = tu_bytes((size_t)visible * sizeof *r);
        for (int32_t i = 0; i < visible; i++) r[i] = (ranked){isnan(scores[i]) ? -INFINITY : scores[i], i};
        qsort(r, (size_t)visible, sizeof *r, by_rank);
        qsort(r, (size_t)n_select, sizeof *r, by_pool);
        for (int32_t i = 0; i < n_select; i++)
            if (sel[i].pool != r[i].pool) fail_msg("entry %d is %d, want %d", i, sel[i].pool, r[i].pool);
        free(r);
    }
    free(sel);
}

static void test_random(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 2, 3, 8, 9, 31, 512, 513, 514, 1000, 5000};
    TU_EACH_ISA(isa)
        for (size_t i = 0; i < TU_LEN(sizes); i++)
            for (int32_t select = 1; select <= 512; select = select * 8 + (select == 512)) {
                float *s = tu_normal((size_t)sizes[i], 10, i);
                check(isa, s, sizes[i], 4, select);
                check(isa, s, sizes[i], 1, select);
                free(s);
            }
}

/* Many equal scores, both zeros, NaN and infinities: lower pools first. */
static void test_ties(void **state)
{
    (void)state;
    enum { N = 3001 };
    static const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, NAN, INFINITY, -INFINITY, 1e-42f};
    TU_EACH_ISA(isa)
        for (uint64_t seed = 0; seed < 20; seed++) {
            gm_rng r;
            gm_rng_init(&r, seed);
            float *s = tu_bytes(N * sizeof *s);
            uint64_t kinds = 1 + seed % TU_LEN(values);
            for (int i = 0; i < N; i++) s[i] = values[gm_rng_below(&r, kinds)];
            for (int32_t select = 1; select < N; select += 377) check(isa, s, N, 2, select);
            free(s);
        }
}

/* A row of 140,000 pools with the best at the start; scores 1e-3 apart. */
static void test_long_row(void **state)
{
    (void)state;
    enum { N = 140000 };
    float *s = tu_bytes(N * sizeof *s);
    TU_EACH_ISA(isa) {
        for (int i = 0; i < N; i++) s[i] = 100.0f - 1e-3f * (float)i;
        check(isa, s, N, 4, 512);
        for (int i = 0; i < N; i++) s[i] = 7.0f;
        check(isa, s, N, 4, 512);
    }
    free(s);
}

/* Rows of a batch that see different amounts, some all of it: their unread scores are NaN; rows outside
 * row_begin .. row_end are left alone. */
static void test_batch(void **state)
{
    (void)state;
    enum { SELECT = 5 };
    int32_t begin[] = {0, 60}, n[] = {30, 9};
    tu_batch b;
    tu_batch_init(&b, 2, begin, n, 16);
    TU_EACH_ISA(isa) {
        float *scores = tu_nan(39 * 20);
        gm_pool_pos sel[39 * SELECT];
        int32_t n_sel[39];
        memset(sel, 0x55, sizeof sel);
        memset(n_sel, 0x55, sizeof n_sel);
        for (int32_t r = 3; r < 37; r++)
            for (int32_t q = 0; q < (b.pos[r].tok + 1) / 4 && (b.pos[r].tok + 1) / 4 > SELECT; q++)
                scores[(r - 3) * 20 + q] = (float)((q * 7 + r) % 11);
        gm_index_topk(&(gm_index_topk_args){.scores = scores, .lds = 20, .rows = &b.rows, .row_begin = 3, .row_end = 37,
                                            .pool = 4, .n_select = SELECT, .sel = sel, .n_sel = n_sel,
                                            .dev = tu_device(isa, 3)});
        for (int32_t r = 0; r < 39; r++) {
            if (r < 3 || r >= 37) {
                assert_int_equal(n_sel[r], 0x55555555);
                for (int i = 0; i < SELECT; i++) assert_int_equal(sel[r * SELECT + i].pool, 0x55555555);
                continue;
            }
            int32_t visible = (b.pos[r].tok + 1) / 4;
            assert_int_equal(n_sel[r], visible < SELECT ? visible : SELECT);
            for (int32_t i = 0; i < SELECT; i++) {
                int32_t p = sel[r * SELECT + i].pool;
                if (i >= n_sel[r]) assert_int_equal(p, -1);
                else assert_true(p >= 0 && p < visible && (i == 0 || p > sel[r * SELECT + i - 1].pool));
            }
        }
        free(scores);
    }
    tu_batch_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_ties),
                                       cmocka_unit_test(test_long_row), cmocka_unit_test(test_batch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
