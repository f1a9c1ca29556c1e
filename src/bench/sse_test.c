#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "bench/sse.h"

static void on_event(void *user, const char *data, size_t len)
{
    gm_str *all = user;
    gm_str_putc(all, '<');
    gm_str_append(all, data, len);
    gm_str_putc(all, '>');
}

static const char stream[] =
    "\xef\xbb\xbf: comment\n\ndata: one\n\ndata:two\r\n\r\nevent: x\nid: 3\ndata: a\ndata:  b\ndata\n\n\n\n"
    "datum: no\n\ndata: \xc3\xa9\xf0\x9f\x98\x80\r\rdata: [DONE]\n\ndata: open";
static const char want[] = "<one><two><a\n b\n><\xc3\xa9\xf0\x9f\x98\x80><[DONE]>";

static void run(size_t a, size_t b)
{
    size_t n = sizeof stream - 1;
    gm_str got = {0};
    gm_sse s = {.on_event = on_event, .user = &got};
    gm_sse_push(&s, stream, a);
    gm_sse_push(&s, stream + a, b - a);
    gm_sse_push(&s, stream + b, n - b);
    gm_sse_finish(&s);
    if (strcmp(gm_str_c(&got), want)) fail_msg("cut at %zu and %zu: %s", a, b, gm_str_c(&got));
    gm_str_fini(&got);
    gm_sse_fini(&s);
}

static void test_every_two_cuts(void **state)
{
    (void)state;
    for (size_t a = 0; a < sizeof stream; a++)
        for (size_t b = a; b < sizeof stream; b++) run(a, b);
}

static void test_single_bytes(void **state)
{
    (void)state;
    gm_str got = {0};
    gm_sse s = {.on_event = on_event, .user = &got};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i + 1 < sizeof stream; i++) gm_sse_push(&s, stream + i, 1);
        assert_string_equal(gm_str_c(&got), want);
        gm_sse_reset(&s);
        gm_str_clear(&got);
    }
    gm_str_fini(&got);
    gm_sse_fini(&s);
}

static void test_finish(void **state)
{
    (void)state;
    gm_str got = {0};
    gm_sse s = {.on_event = on_event, .user = &got};
    gm_sse_push(&s, "data: x\n", 8);
    assert_string_equal(gm_str_c(&got), "");
    gm_sse_finish(&s);
    assert_string_equal(gm_str_c(&got), "<x>");
    gm_str_fini(&got);
    gm_sse_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_two_cuts),
                                       cmocka_unit_test(test_single_bytes), cmocka_unit_test(test_finish)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
