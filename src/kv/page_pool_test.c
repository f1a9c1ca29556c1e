#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "kv/page_pool.h"

static void check(const gm_page_pool *p)
{
    gm_error err = {0};
    if (gm_page_pool_check(p, &err)) fail_msg("%s", err.message);
}

static gm_page_pool *pool(int32_t n)
{
    gm_page_pool *p = NULL;
    assert_int_equal(gm_page_pool_create(&p, n, NULL), GM_OK);
    return p;
}

static void takes_all_or_none(void **state)
{
    (void)state;
    gm_page_pool *p = pool(4);
    gm_page a[4], b[2];
    assert_int_equal(gm_page_pool_take(p, 3, a), GM_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(a[i].id, i);
    assert_int_equal(gm_page_pool_take(p, 2, b), GM_ECAPACITY);
    assert_int_equal(gm_page_pool_free(p), 1);
    assert_int_equal(gm_page_pool_take(p, 1, b), GM_OK);
    assert_int_equal(gm_page_pool_take(p, 0, b), GM_OK);
    assert_int_equal(gm_page_pool_take(p, 1, b), GM_ECAPACITY);
    check(p);
    gm_page_pool_destroy(p);
}

static void last_holder_frees(void **state)
{
    (void)state;
    gm_page_pool *p = pool(2);
    gm_page a;
    assert_int_equal(gm_page_pool_take(p, 1, &a), GM_OK);
    gm_page_pool_pin(p, a);
    gm_page_pool_unpin(p, a);
    assert_int_equal(gm_page_pool_refs(p, a), 1);
    assert_int_equal(gm_page_pool_free(p), 1);
    gm_page_pool_unpin(p, a);
    assert_int_equal(gm_page_pool_free(p), 2);
    check(p);
    gm_page_pool_destroy(p);
}

/* What came back last is taken first, and a page can be revived from the middle of the free list. */
static void free_list_order(void **state)
{
    (void)state;
    gm_page_pool *p = pool(5);
    gm_page a[5];
    assert_int_equal(gm_page_pool_take(p, 5, a), GM_OK);
    for (int i = 4; i >= 0; i--) gm_page_pool_unpin(p, a[i]);
    check(p);
    gm_page_pool_pin(p, a[2]);
    check(p);
    gm_page b[4];
    assert_int_equal(gm_page_pool_take(p, 4, b), GM_OK);
    int32_t want[] = {0, 1, 3, 4};
    for (int i = 0; i < 4; i++) assert_int_equal(b[i].id, want[i]);
    check(p);
    gm_page_pool_destroy(p);
}

static void creation_reports(void **state)
{
    (void)state;
    gm_page_pool *p = NULL;
    assert_int_equal(gm_page_pool_create(&p, 0, NULL), GM_EARG);
    for (long n = 1; n <= 2; n++) {
        gm_alloc_fail_at(n);
        assert_int_equal(gm_page_pool_create(&p, 3, NULL), GM_ENOMEM);
        assert_null(p);
    }
    gm_alloc_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_all_or_none),
        cmocka_unit_test(last_holder_frees),
        cmocka_unit_test(free_list_order),
        cmocka_unit_test(creation_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
