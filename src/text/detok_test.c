#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "text/detok.h"

#define DIR GM_MODELS "/tiny-glm-5.3-flash"

static gm_tokenizer *tok;

static int open_tiny(void **state)
{
    (void)state;
    return gm_tokenizer_open(&tok, DIR, NULL);
}

static int close_tiny(void **state)
{
    (void)state;
    gm_tokenizer_close(tok);
    return 0;
}

/* Every piece is whole characters and the pieces join to the decoding of all ids. */
static void check_stream(const int32_t *ids, size_t n, bool skip_special)
{
    gm_detok d;
    gm_str all = {0}, piece = {0}, want = {0};
    gm_detok_init(&d, tok, skip_special);
    for (size_t i = 0; i <= n; i++) {
        gm_str_clear(&piece);
        if (i < n) assert_int_equal(gm_detok_push(&d, ids[i], &piece, NULL), GM_OK);
        else gm_detok_finish(&d, &piece);
        assert_int_equal(gm_utf8_valid_len(gm_str_c(&piece), piece.len), piece.len);
        gm_str_append(&all, gm_str_c(&piece), piece.len);
    }
    assert_int_equal(gm_tokenizer_decode(tok, ids, n, skip_special, &want, NULL), GM_OK);
    assert_string_equal(gm_str_c(&all), gm_str_c(&want));
    gm_str_fini(&all);
    gm_str_fini(&piece);
    gm_str_fini(&want);
}

static void test_texts(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "ď", "👩‍🚀", "한글 🚀 end", "大阪🚆 \"quoted\" 'it''s' \"", "a ,b . c !", "x<|user|>é<think>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        gm_ids ids = {0};
        assert_int_equal(gm_tokenizer_encode(tok, texts[i], strlen(texts[i]), GM_ADDED_MATCH, &ids, NULL),
                         GM_OK);
        for (size_t n = 0; n <= ids.n; n++) { /* cut anywhere, inside characters too */
            check_stream(ids.data, n, false);
            check_stream(ids.data, n, true);
        }
        gm_ids_fini(&ids);
    }
}

static void test_random_ids(void **state)
{
    (void)state;
    gm_rng rng;
    gm_rng_init(&rng, 5);
    for (int round = 0; round < 2000; round++) {
        int32_t ids[24];
        size_t n = (size_t)gm_rng_below(&rng, 24);
        for (size_t i = 0; i < n; i++)
            ids[i] = (int32_t)gm_rng_below(&rng, round % 2 ? 2536 : 256); /* bytes */
        check_stream(ids, n, round % 3 == 0);
    }
    gm_detok d;
    gm_error err = {0};
    gm_str s = {0};
    gm_detok_init(&d, tok, true);
    assert_int_equal(gm_detok_push(&d, 2540, &s, &err), GM_EARG);
    assert_int_equal(gm_detok_push(&d, -1, &s, &err), GM_EARG);
}

typedef struct stop_case {
    const char *stops[3];
    const char *text, *shown;
    int hit;
    bool include;
} stop_case;

static const stop_case stop_cases[] = {
    {{"qrstuv"}, "ghinopqrstuvw", "ghinop", 0, false},
    {{"qrstuv"}, "ghinopqrstuvw", "ghinopqrstuv", 0, true},
    {{"qrstuv"}, "nopqrstuXyz", "nopqrstuXyz", -1, false},
    {{"qrstuv"}, "nopqrstu", "nopqrstu", -1, false},
    {{"abcd", "ab"}, "xxabcd", "xx", 1, false}, /* the shorter completes first */
    {{"ab", "abcd"}, "xxabcd", "xx", 0, false},
    {{"bc", "abc"}, "xabc", "xa", 0, false}, /* both complete at once: the earlier in the list */
    {{"abc", "bc"}, "xabc", "x", 0, false},
    {{"aab"}, "aaab", "a", 0, false},
    {{"é"}, "caféx", "caf", 0, false},
    {{"é"}, "cafèx", "cafèx", -1, false}, /* the same first byte */
    {{"🚀"}, "go 🚆🚀", "go 🚆", 0, false},
    {{"\x9a\x80"}, "go 🚀!", "go ", 0, false}, /* inside a character */
    {{"END"}, "value <tool END", "value <tool ", 0, false},
    {{"\n\n"}, "a\nb\n\nc", "a\nb", 0, false},
    {{""}, "abc", "abc", -1, false},
    {{NULL}, "abc", "abc", -1, false},
};

static void run_stop(const stop_case *c, size_t cut1, size_t cut2)
{
    size_t lens[3], len = strlen(c->text);
    int n = 0, hit = -1;
    for (; n < 3 && c->stops[n]; n++) lens[n] = strlen(c->stops[n]);
    gm_stopper *s = gm_stopper_create(c->stops, lens, n, c->include);
    gm_str out = {0};
    size_t at[4] = {0, cut1, cut2, len};
    for (int i = 0; i < 3; i++) {
        int h = gm_stopper_push(s, c->text + at[i], at[i + 1] - at[i], &out);
        if (h >= 0 && hit < 0) hit = h;
    }
    if (hit < 0) gm_stopper_finish(s, &out);
    assert_int_equal(hit, c->hit);
    assert_string_equal(gm_str_c(&out), c->shown);
    gm_stopper_destroy(s);
    gm_str_fini(&out);
}

static void test_stops(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof stop_cases / sizeof *stop_cases; i++) {
        size_t len = strlen(stop_cases[i].text);
        for (size_t a = 0; a <= len; a++)
            for (size_t b = a; b <= len; b++) run_stop(&stop_cases[i], a, b);
    }
    gm_stopper_destroy(NULL);
}

/* What is held back is the longest suffix that begins a stop string, no more. */
static void test_hold_back(void **state)
{
    (void)state;
    const char *stops[] = {"abab", "xyz"};
    size_t lens[] = {4, 3};
    gm_stopper *s = gm_stopper_create(stops, lens, 2, false);
    gm_str out = {0};
    static const struct {
        const char *push, *shown;
    } steps[] = {{"a", ""},     {"b", ""},     {"a", ""},        {"a", "aba"},
                 {"x", "abaa"}, {"y", "abaa"}, {"q", "abaaxyq"}, {"é", "abaaxyqé"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(gm_stopper_push(s, steps[i].push, strlen(steps[i].push), &out), -1);
        assert_string_equal(gm_str_c(&out), steps[i].shown);
    }
    gm_stopper_destroy(s);
    gm_str_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_random_ids),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_hold_back),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
