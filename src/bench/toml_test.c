#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "bench/grid.h"
#include "bench/toml.h"

static void same(const char *toml, const char *json)
{
    json_t *v = NULL;
    gm_error err = {0};
    gm_str got = {0};
    if (gm_toml_parse(&v, toml, strlen(toml), "test", &err)) fail_msg("%s: %s", toml, err.message);
    gm_json_put(&got, v);
    assert_string_equal(gm_str_c(&got), json);
    gm_str_fini(&got);
    json_decref(v);
}

static void test_values(void **state)
{
    (void)state;
    same("", "{}");
    same("a = 1\nb = -2_000 # c\nc = 0x1F\nd = 2.5\ne = 1e3\nf = true\ng=false",
         "{\"a\":1,\"b\":-2000,\"c\":31,\"d\":2.5,\"e\":1000.0,\"f\":true,\"g\":false}");
    same("a = \"x\\t\\\"\\u00e9\\\\\"\nb = 'raw \\n'\r\n",
         "{\"a\":\"x\\t\\\"\xc3\xa9\\\\\",\"b\":\"raw \\\\n\"}");
    same("a = \"\"\"\none\ntwo \\\n   three\"\"\"\nb = '''\n'x'\n'''",
         "{\"a\":\"one\\ntwo three\",\"b\":\"'x'\\n\"}");
    same("a = [1, \"two\", [3], # c\n 4.0,\n]\nb = { x = 1, y.z = \"w\" }",
         "{\"a\":[1,\"two\",[3],4.0],\"b\":{\"x\":1,\"y\":{\"z\":\"w\"}}}");
    same("[t]\na = 1\n[t.u]\nb = 2\n[[l]]\nn = 1\n[[l]]\nn = 2\n[l.sub]\nx = 3\n",
         "{\"t\":{\"a\":1,\"u\":{\"b\":2}},\"l\":[{\"n\":1},{\"n\":2,\"sub\":{\"x\":3}}]}");
    same("a.b.c = 1\na.b.d = 2\n\"quoted key\" = 3", "{\"a\":{\"b\":{\"c\":1,\"d\":2}},\"quoted key\":3}");
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const bad[] = {"a",
                                      "a =",
                                      "a = 1 2",
                                      "a = \"x",
                                      "a = 'x\n'",
                                      "a = [1",
                                      "a = {b = 1",
                                      "a = 1\na = 2",
                                      "[a\nb = 1",
                                      "a = 1979-05-27",
                                      "a = yes",
                                      "a = 1\n[a]\nb = 2",
                                      "= 1",
                                      "a = \"\\q\"",
                                      "a = {b = 1,, c = 2}",
                                      "[[a]]\n[a]\n",
                                      "a = [1 2]",
                                      "a = \"\xff\"",
                                      "\"\xff\".b = 1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *v = NULL;
        gm_error err = {0};
        if (!gm_toml_parse(&v, bad[i], strlen(bad[i]), "test", &err)) fail_msg("taken: %s", bad[i]);
        assert_non_null(strstr(err.message, "test:"));
    }
    char deep[200];
    json_t *v = NULL;
    memset(deep, '[', sizeof deep);
    memcpy(deep, "a=", 2);
    assert_int_equal(gm_toml_parse(&v, deep, sizeof deep, "test", NULL), GM_EFORMAT);
}

/* Cut off anywhere it is an error or a shorter table, never read past its end. */
static void test_cuts(void **state)
{
    (void)state;
    static const char text[] =
        "a = \"\"\"x\"\"\"\n[b.c]\nd = [1, {e = 'f'}]\n[[g]]\nh.i = -1.5e3\nj = \"\\u00e9\"\n";
    for (size_t n = 0; n < sizeof text; n++) {
        char *copy = memcpy(test_malloc(n + 1), text, n);
        json_t *v = NULL;
        if (!gm_toml_parse(&v, copy, n, "test", NULL)) json_decref(v);
        test_free(copy);
    }
}

static void test_kv_tokens(void **state)
{
    (void)state;
    static const char log[] = "INFO x GPU KV cache size: 1,234,567 tokens\nINFO y GPU KV cache size: 33 "
                              "tokens (2.0x)\nGPU KV cache size: ";
    assert_int_equal(gm_grid_kv_tokens(log, sizeof log - 1), 1234600);
    assert_int_equal(gm_grid_kv_tokens("none", 4), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_cuts), cmocka_unit_test(test_kv_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
