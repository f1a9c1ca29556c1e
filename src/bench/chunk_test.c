#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/chunk.h"

typedef struct expect {
    const char *json;
    bool choices, content, finished, usage, error;
    int64_t prompt, completion, cached;
    const char *text, *message;
} expect;

static void check(const expect *e)
{
    gm_chunk c;
    gm_str text = {0}, error = {0};
    assert_int_equal(gm_chunk_read(&c, e->json, strlen(e->json), &text, &error), GM_OK);
    char got[200], want[200];
    snprintf(got, sizeof got, "%d %d %d %d %d %lld %lld %lld", c.choices, c.content, c.finished, c.usage,
             c.error, (long long)c.prompt_tokens, (long long)c.completion_tokens, (long long)c.cached_tokens);
    snprintf(want, sizeof want, "%d %d %d %d %d %lld %lld %lld", e->choices, e->content, e->finished,
             e->usage, e->error, (long long)e->prompt, (long long)e->completion, (long long)e->cached);
    if (strcmp(got, want)) fail_msg("%s: got %s, want %s", e->json, got, want);
    assert_string_equal(gm_str_c(&text), e->text ? e->text : "");
    assert_string_equal(gm_str_c(&error), e->message ? e->message : "");
    gm_str_fini(&text);
    gm_str_fini(&error);
}

static void test_forms(void **state)
{
    (void)state;
    static const expect cases[] = {
        {.json = "{\"choices\":[{\"index\":0,\"text\":\"a\\\"\\u00e9\\ud83d\\ude00\\n\",\"finish_reason\":"
                 "null}]}",
         .choices = true,
         .content = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1,
         .text = "a\"\xc3\xa9\xf0\x9f\x98\x80\n"},
        {.json = " { \"choices\" : [ { \"text\" : \"\" , \"finish_reason\" : \"stop\" } ] } ",
         .choices = true,
         .finished = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1},
        {.json =
             "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}",
         .choices = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1},
        {.json = "{\"choices\":[{\"delta\":{\"reasoning\":\"hm\",\"content\":null}}]}",
         .choices = true,
         .content = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1,
         .text = "hm"},
        {.json = "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{"
                 "\\\"a\\\":1}\"}}]}}]}",
         .choices = true,
         .content = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1},
        {.json = "{\"choices\":[{\"delta\":{\"tool_calls\":[]}}]}",
         .choices = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1},
        {.json =
             "{\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"total_tokens\":19,\"completion_tokens\":7,"
             "\"prompt_tokens_details\":{\"cached_tokens\":4}}}",
         .usage = true,
         .prompt = 12,
         .completion = 7,
         .cached = 4},
        {.json = "{\"choices\":[{\"text\":\"x\",\"logprobs\":{\"tokens\":[\"]}\"],\"a\":[[1,2],{}]}}],"
                 "\"usage\":null}",
         .choices = true,
         .content = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1,
         .text = "x"},
        {.json = "{\"error\": {\"message\": \"bad\", \"type\": \"T\", \"param\": null, \"code\": 500}}",
         .error = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1,
         .message = "bad"},
        {.json = "{\"error\":\"Unauthorized\"}",
         .error = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1,
         .message = "Unauthorized"},
        {.json = "{\"error\":{\"code\":1}}",
         .error = true,
         .prompt = -1,
         .completion = -1,
         .cached = -1,
         .message = "{\"code\":1}"},
        {.json = "{\"error\":null,\"choices\":null}", .prompt = -1, .completion = -1, .cached = -1},
        {.json = "{}", .prompt = -1, .completion = -1, .cached = -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(&cases[i]);
}

/* Every beginning of a message is refused; none is read past its end (the copies have no byte to spare). */
static void test_cut_messages(void **state)
{
    (void)state;
    static const char json[] = "{\"id\":\"c\\\\\",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
                               "\"\\ud83d\\ude00x\",\"tool_calls\":[{}]},"
                               "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"prompt_tokens_"
                               "details\":{\"cached_tokens\":2}},"
                               "\"error\":{\"message\":\"m\"}}";
    for (size_t n = 0; n < sizeof json; n++) {
        char *copy = malloc(n ? n : 1);
        gm_chunk c;
        gm_str text = {0}, error = {0};
        memcpy(copy, json, n);
        gm_status st = gm_chunk_read(&c, copy, n, &text, &error);
        assert_int_equal(st, n == sizeof json - 1 ? GM_OK : GM_EFORMAT);
        gm_str_fini(&text);
        gm_str_fini(&error);
        free(copy);
    }
}

static void test_nonsense(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "", "[]", "null", "{\"a\"}", "{\"a\":1,}x", "{\"a\":1}{", "{\"choices\":[1]}", "{a:1}", "{\"a\" 1}"};
    char deep[400];
    gm_chunk c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!gm_chunk_read(&c, bad[i], strlen(bad[i]), NULL, NULL)) fail_msg("taken: %s", bad[i]);
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    assert_int_equal(gm_chunk_read(&c, deep, sizeof deep, NULL, NULL), GM_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_cut_messages),
                                       cmocka_unit_test(test_nonsense)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
