#include "ops/cache_row.h"
#include "ops/test_util.h"

/* The whole of a cache of 1,048,576 rows and more lies beyond what 32 bits reach. */
static void test_far_offsets(void **state)
{
    (void)state;
    enum { PAGES = 40000 };
    gm_page *pages = tu_bytes(PAGES * sizeof *pages);
    for (int32_t i = 0; i < PAGES; i++) pages[i].id = PAGES - 1 - i;
    gm_slice s = {.pages = pages, .n_pages = PAGES};
    gm_latent_cache c = {.n_pages = PAGES, .page_tokens = 64, .row_bytes = 2176};
    assert_true(gm_latent_offset(&c, &s, (gm_pos){0}) == (int64_t)(PAGES - 1) * 64 * 2176);
    assert_true(gm_latent_offset(&c, &s, (gm_pos){131072 + 3}) == ((int64_t)(PAGES - 1 - 2048) * 64 + 3) * 2176);
    assert_true(gm_latent_offset(&c, &s, (gm_pos){1048576 - 1}) == ((int64_t)(PAGES - 16384) * 64 + 63) * 2176);
    gm_index_cache x = {.n_pages = PAGES, .page_tokens = 64, .pool = 4, .key_bytes = 131072};
    assert_true(gm_index_offset(&x, &s, (gm_pool_pos){262143}) == ((int64_t)(PAGES - 16384) * 16 + 15) * 131072);
    free(pages);
}

/* A page of 20 tokens in pools of 4, two keys a smaller unit: every position has a place of its own. */
static void test_places_are_distinct(void **state)
{
    (void)state;
    static const int32_t pools[] = {1, 2, 4, 5, 10, 20};
    for (size_t i = 0; i < TU_LEN(pools); i++) {
        tu_batch b;
        int32_t begin[] = {0, 0}, n[] = {97, 41};
        tu_batch_init(&b, 2, begin, n, 20);
        gm_index_cache x = {.n_pages = b.n_pages, .page_tokens = 20, .pool = pools[i], .key_bytes = 1};
        gm_latent_cache c = {.n_pages = b.n_pages, .page_tokens = 20, .row_bytes = 1};
        uint8_t *key_seen = calloc((size_t)b.n_pages * 20, 1), *row_seen = calloc((size_t)b.n_pages * 20, 1);
        for (int32_t s = 0; s < 2; s++) {
            for (int32_t q = 0; q < n[s] / pools[i]; q++)
                assert_int_equal(key_seen[gm_index_offset(&x, &b.slices[s], (gm_pool_pos){q})]++, 0);
            for (int32_t p = 0; p < n[s]; p++)
                assert_int_equal(row_seen[gm_latent_offset(&c, &b.slices[s], (gm_pos){p})]++, 0);
        }
        free(key_seen);
        free(row_seen);
        tu_batch_fini(&b);
    }
}

static void test_visible_pools(void **state)
{
    (void)state;
    assert_int_equal(gm_pools_visible((gm_pos){2}, 4), 0);
    assert_int_equal(gm_pools_visible((gm_pos){3}, 4), 1);
    assert_int_equal(gm_pools_visible((gm_pos){2050}, 4), 512);
    assert_int_equal(gm_pools_visible((gm_pos){2051}, 4), 513);
    assert_int_equal(gm_pools_visible((gm_pos){INT32_MAX}, 2), 1 << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_offsets),
        cmocka_unit_test(test_places_are_distinct),
        cmocka_unit_test(test_visible_pools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
