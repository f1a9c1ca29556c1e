#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "kv/prefix_tree.h"

enum { PAGE = 4, PAGES = 16, SLOTS = 6 };
static const gm_prefix_salt no_salt;

static gm_prefix_tree *make(int32_t n_slots)
{
    gm_prefix_tree *t = NULL;
    assert_int_equal(gm_prefix_tree_create(&t, PAGES, PAGE, n_slots, NULL), GM_OK);
    return t;
}

static void check(gm_prefix_tree *t)
{
    gm_error err = {0};
    if (gm_prefix_tree_check(t, &err)) fail_msg("%s", err.message);
}

/* Page `id` under `parent` with tokens of one value. */
static gm_page add(gm_prefix_tree *t, int32_t id, gm_page parent, int32_t value)
{
    int32_t tokens[PAGE] = {value, value, value, value};
    gm_prefix_tree_insert(t, (gm_page){id}, parent, no_salt, tokens);
    check(t);
    return (gm_page){id};
}

static int32_t find(gm_prefix_tree *t, gm_page parent, int32_t value)
{
    int32_t tokens[PAGE] = {value, value, value, value};
    return gm_prefix_tree_find(t, parent, no_salt, tokens).id;
}

static void content_tells_pages_apart(void **state)
{
    (void)state;
    gm_prefix_tree *t = make(0);
    gm_page a = add(t, 3, GM_PAGE_NONE, 7), b = add(t, 5, a, 8);
    assert_int_equal(find(t, GM_PAGE_NONE, 7), 3);
    assert_int_equal(find(t, a, 8), 5);
    assert_int_equal(find(t, GM_PAGE_NONE, 8), -1); /* the same tokens elsewhere */
    assert_int_equal(find(t, b, 8), -1);
    assert_int_equal(find(t, a, 7), -1);
    int32_t nearly[PAGE] = {7, 7, 7, 8}, sevens[PAGE] = {7, 7, 7, 7};
    assert_int_equal(gm_prefix_tree_find(t, GM_PAGE_NONE, no_salt, nearly).id, -1);
    gm_prefix_salt x = gm_prefix_salt_of("x", 1), y = gm_prefix_salt_of("y", 1);
    assert_int_equal(gm_prefix_tree_find(t, GM_PAGE_NONE, x, sevens).id, -1);
    gm_prefix_tree_insert(t, (gm_page){0}, GM_PAGE_NONE, x, sevens);
    assert_int_equal(gm_prefix_tree_find(t, GM_PAGE_NONE, x, sevens).id, 0);
    assert_int_equal(gm_prefix_tree_find(t, GM_PAGE_NONE, y, sevens).id, -1);
    assert_int_equal(find(t, GM_PAGE_NONE, 7), 3);
    check(t);
    gm_prefix_tree_destroy(t);
}

/* Leaves first, the one let go longest ago before the others; what is held and what stands above it stay. */
static void leaves_go_in_order_of_age(void **state)
{
    (void)state;
    gm_prefix_tree *t = make(0);
    gm_page a = add(t, 0, GM_PAGE_NONE, 1), b = add(t, 1, a, 2), c = add(t, 2, b, 3), d = add(t, 3, b, 4),
            e = add(t, 4, a, 5);
    assert_int_equal(gm_prefix_tree_victim(t).id, -1);
    gm_prefix_tree_let_go(t, e);
    gm_prefix_tree_let_go(t, c);
    check(t);
    assert_int_equal(gm_prefix_tree_evictable(t), 2);
    assert_int_equal(gm_prefix_tree_victim(t).id, e.id);
    gm_prefix_tree_hold(t, e); /* used again: it is the younger one when it is let go */
    gm_prefix_tree_let_go(t, e);
    assert_int_equal(gm_prefix_tree_victim(t).id, c.id);
    gm_prefix_tree_remove(t, c);
    check(t);
    assert_int_equal(find(t, b, 3), -1);
    gm_prefix_tree_let_go(t, d);
    gm_prefix_tree_let_go(t, b);
    gm_prefix_tree_let_go(t, a);
    check(t);
    static const int32_t order[] = {4, 3, 1, 0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(gm_prefix_tree_victim(t).id, order[i]);
        gm_prefix_tree_remove(t, gm_prefix_tree_victim(t));
        check(t);
    }
    assert_int_equal(gm_prefix_tree_nodes(t), 0);
    gm_prefix_tree_destroy(t);
}

/* Where there is state, leaves without one go first, however young. */
static void leaves_without_state_go_first(void **state)
{
    (void)state;
    gm_prefix_tree *t = make(SLOTS);
    gm_page a = add(t, 0, GM_PAGE_NONE, 1), b = add(t, 1, GM_PAGE_NONE, 2);
    gm_prefix_tree_put_snapshot(t, a, (gm_slot){2}, false);
    gm_prefix_tree_let_go(t, a);
    gm_prefix_tree_let_go(t, b);
    check(t);
    assert_int_equal(gm_prefix_tree_victim(t).id, b.id);
    assert_int_equal(gm_prefix_tree_drop_snapshot(t, a).id, 2);
    assert_int_equal(gm_prefix_tree_victim(t).id, a.id);
    check(t);
    gm_prefix_tree_destroy(t);
}

/* Six pages in a row: a snapshot is worth the tokens since the one before it, also after that one has gone.
 */
static void snapshots_are_ranked_by_value_and_age(void **state)
{
    (void)state;
    gm_prefix_tree *t = make(SLOTS);
    gm_page p[6];
    for (int i = 0; i < 6; i++) p[i] = add(t, i, i ? p[i - 1] : GM_PAGE_NONE, i + 1);
    gm_prefix_tree_put_snapshot(t, p[2], (gm_slot){0}, false); /* 12 tokens */
    gm_prefix_tree_put_snapshot(t, p[5], (gm_slot){1}, false); /* 12 */
    gm_prefix_tree_put_snapshot(t, p[3], (gm_slot){2}, false); /* 4, and leaves 8 to the last */
    check(t);
    assert_int_equal(gm_prefix_tree_snapshot_victim(t, GM_PAGE_NONE).id, p[3].id); /* the clock: 4 */
    (void)gm_prefix_tree_drop_snapshot(t, p[3]);
    check(t);
    gm_prefix_tree_use_snapshot(t, p[2]); /* 16 now */
    assert_int_equal(gm_prefix_tree_snapshot_victim(t, GM_PAGE_NONE).id, p[5].id);
    assert_int_equal(gm_prefix_tree_snapshot_victim(t, p[5]).id, p[2].id);
    assert_int_equal(gm_prefix_tree_snapshot_page(t, (gm_slot){1}).id, p[5].id);
    assert_int_equal(gm_prefix_tree_snapshot_page(t, (gm_slot){2}).id, -1);
    gm_prefix_tree_destroy(t);

    /* What is worth less than all others is not kept at first; wanted often enough, it is. */
    t = make(2);
    for (int i = 0; i < 6; i++) p[i] = add(t, i, i ? p[i - 1] : GM_PAGE_NONE, i + 1);
    gm_prefix_tree_put_snapshot(t, p[4], (gm_slot){0}, false); /* 20 */
    for (int i = 0; i < 9; i++) assert_int_equal(gm_prefix_tree_lesser_snapshot(t, p[5], false).id, -1);
    for (int i = 0; i < 4; i++) assert_int_equal(gm_prefix_tree_lesser_snapshot(t, p[5], true).id, -1);
    assert_int_equal(gm_prefix_tree_lesser_snapshot(t, p[5], false).id, -1);
    assert_int_equal(gm_prefix_tree_lesser_snapshot(t, p[5], true).id, p[4].id);
    assert_false(gm_prefix_tree_moving(t, p[4]));
    gm_prefix_tree_put_snapshot(t, p[5], (gm_slot){1}, true);
    assert_true(gm_prefix_tree_moving(t, p[5]));
    gm_prefix_tree_use_snapshot(t, p[5]);
    assert_false(gm_prefix_tree_moving(t, p[5]));
    check(t);
    gm_prefix_tree_destroy(t);
}

static void creation_reports(void **state)
{
    (void)state;
    gm_prefix_tree *t = NULL;
    gm_status st = GM_ENOMEM;
    long n = 1;
    for (; st; n++) {
        gm_alloc_fail_at(n);
        st = gm_prefix_tree_create(&t, PAGES, PAGE, SLOTS, NULL);
        if (st) assert_int_equal(st, GM_ENOMEM);
    }
    gm_alloc_fail_at(0);
    assert_true(n > 7);
    gm_prefix_tree_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_tells_pages_apart),
        cmocka_unit_test(leaves_go_in_order_of_age),
        cmocka_unit_test(leaves_without_state_go_first),
        cmocka_unit_test(snapshots_are_ranked_by_value_and_age),
        cmocka_unit_test(creation_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
