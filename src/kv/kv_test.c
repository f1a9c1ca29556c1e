#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kv/kv.h"

static void check(gm_kv *kv)
{
    gm_error err = {0};
    if (gm_kv_check(kv, &err)) fail_msg("%s", err.message);
}

static gm_kv *make(int32_t page_tokens, int32_t n_pages, int32_t n_slots)
{
    gm_kv *kv = NULL;
    gm_kv_params p = {.page_tokens = page_tokens, .n_pages = n_pages, .n_slots = n_slots};
    assert_int_equal(gm_kv_create(&kv, &p, NULL), GM_OK);
    return kv;
}

static void grows_by_pages(void **state)
{
    (void)state;
    gm_kv *kv = make(4, 5, 1);
    gm_kv_seq s, o;
    assert_int_equal(gm_kv_seq_init(&s, 4, 17, NULL), GM_OK);
    assert_int_equal(gm_kv_seq_init(&o, 4, 8, NULL), GM_OK);
    assert_int_equal(s.cap_pages, 5);
    assert_int_equal(gm_kv_pages_for(kv, 0), 0);
    assert_int_equal(gm_kv_grow(kv, &s, 4), GM_OK);
    assert_int_equal(s.n_pages, 1);
    assert_int_equal(gm_kv_grow(kv, &s, 5), GM_OK);
    assert_int_equal(s.n_pages, 2);
    assert_int_equal(gm_kv_grow(kv, &o, 8), GM_OK);
    assert_int_equal(gm_kv_grow(kv, &s, 17), GM_ECAPACITY);
    assert_int_equal(s.n_pages, 2);
    check(kv);
    assert_int_equal(gm_kv_take_slot(kv, &s), GM_OK);
    assert_int_equal(gm_kv_take_slot(kv, &s), GM_OK); /* once only */
    assert_int_equal(gm_kv_take_slot(kv, &o), GM_ECAPACITY);
    check(kv);
    gm_kv_release(kv, &s);
    assert_int_equal(gm_kv_pages_free(kv), 3);
    assert_int_equal(gm_kv_slots_free(kv), 1);
    gm_kv_release(kv, &o);
    gm_kv_release(kv, &o); /* holds nothing: nothing happens */
    check(kv);
    gm_kv_seq_fini(&s);
    gm_kv_seq_fini(&o);
    gm_kv_destroy(kv);
}

static void no_state_needs_no_slot(void **state)
{
    (void)state;
    gm_kv *kv = make(4, 2, 0);
    gm_kv_seq s;
    assert_int_equal(gm_kv_seq_init(&s, 4, 4, NULL), GM_OK);
    assert_int_equal(gm_kv_take_slot(kv, &s), GM_OK);
    assert_int_equal(s.slot.id, -1);
    gm_kv_release(kv, &s);
    gm_kv_seq_fini(&s);
    gm_kv_destroy(kv);
}

/* A page that a table holds and the pool does not know about, and the reverse, are both found. */
static void check_finds_faults(void **state)
{
    (void)state;
    gm_kv *kv = make(4, 4, 2);
    gm_kv_seq s;
    assert_int_equal(gm_kv_seq_init(&s, 4, 16, NULL), GM_OK);
    assert_int_equal(gm_kv_grow(kv, &s, 8), GM_OK);
    gm_page kept = s.pages[1];
    s.pages[1] = s.pages[0];
    assert_int_equal(gm_kv_check(kv, NULL), GM_EINTERNAL);
    s.pages[1] = (gm_page){3};
    assert_int_equal(gm_kv_check(kv, NULL), GM_EINTERNAL);
    s.pages[1] = kept;
    s.slot = (gm_slot){1};
    assert_int_equal(gm_kv_check(kv, NULL), GM_EINTERNAL);
    s.slot = GM_SLOT_NONE;
    check(kv);
    gm_kv_release(kv, &s);
    gm_kv_seq_fini(&s);
    gm_kv_destroy(kv);
}

static void random_operations(void **state)
{
    (void)state;
    enum { N = 9, TOKENS = 40 };
    gm_kv *kv = make(3, 20, 4);
    gm_kv_seq s[N];
    gm_rng rng;
    gm_rng_init(&rng, 5);
    int32_t len[N] = {0};
    for (int i = 0; i < N; i++) assert_int_equal(gm_kv_seq_init(&s[i], 3, TOKENS, NULL), GM_OK);
    for (int step = 0; step < 100000; step++) {
        uint64_t i = gm_rng_below(&rng, N), op = gm_rng_below(&rng, 4);
        if (op < 2) {
            int32_t want = len[i] + (int32_t)gm_rng_below(&rng, 9);
            if (want > TOKENS) want = TOKENS;
            int32_t before = s[i].n_pages;
            if (gm_kv_grow(kv, &s[i], want) == GM_OK) len[i] = want;
            else assert_int_equal(s[i].n_pages, before);
        } else if (op == 2) {
            (void)gm_kv_take_slot(kv, &s[i]);
        } else {
            gm_kv_release(kv, &s[i]);
            len[i] = 0;
        }
        check(kv);
    }
    for (int i = 0; i < N; i++) {
        gm_kv_release(kv, &s[i]);
        gm_kv_seq_fini(&s[i]);
    }
    assert_int_equal(gm_kv_pages_free(kv), 20);
    assert_int_equal(gm_kv_slots_free(kv), 4);
    gm_kv_destroy(kv);
}

static void creation_reports(void **state)
{
    (void)state;
    gm_kv_params p = {.page_tokens = 4, .n_pages = 4, .n_slots = 2};
    gm_kv *kv = NULL;
    gm_status st = GM_ENOMEM;
    long n = 1;
    for (; st; n++) {
        gm_alloc_fail_at(n);
        st = gm_kv_create(&kv, &p, NULL);
        if (st) assert_int_equal(st, GM_ENOMEM);
    }
    assert_true(n > 5);
    gm_kv_destroy(kv);
    gm_kv_seq s;
    gm_alloc_fail_at(1);
    assert_int_equal(gm_kv_seq_init(&s, 4, 4, NULL), GM_ENOMEM);
    gm_kv_seq_fini(&s);
    gm_alloc_fail_at(0);
    p.page_tokens = 0;
    assert_int_equal(gm_kv_create(&kv, &p, NULL), GM_EARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_by_pages),     cmocka_unit_test(no_state_needs_no_slot),
        cmocka_unit_test(check_finds_faults), cmocka_unit_test(random_operations),
        cmocka_unit_test(creation_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
