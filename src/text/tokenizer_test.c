#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "text/detok.h"
#include "text/text_internal.h"
#include "text/tokenizer.h"

#define DIR GM_MODELS "/tiny-glm-5.3-flash"

static gm_tokenizer *tok;

static int open_tiny(void **state)
{
    (void)state;
    gm_error err = {0};
    if (gm_tokenizer_open(&tok, DIR, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return -1;
    }
    return 0;
}

static int close_tiny(void **state)
{
    (void)state;
    gm_tokenizer_close(tok);
    return 0;
}

static void encode(const char *text, size_t len, gm_added added, gm_ids *ids)
{
    gm_error err = {0};
    gm_status st = gm_tokenizer_encode(tok, text, len, added, ids, &err);
    if (st) fail_msg("%s", err.message);
}

static void expect_ids(const char *text, const json_t *want, const gm_ids *got)
{
    bool same = json_array_size(want) == got->n;
    for (size_t i = 0; i < got->n && same; i++)
        same = json_integer_value(json_array_get(want, i)) == got->data[i];
    if (same) return;
    gm_str s = {0};
    for (size_t i = 0; i < got->n; i++) gm_str_printf(&s, " %d", got->data[i]);
    char *w = json_dumps(want, JSON_COMPACT);
    fail_msg("\"%s\": got%s, want %s", text, gm_str_c(&s), w);
}

/* Calls f for every line of a JSON lines file. */
static void each_line(const char *path, void (*f)(const json_t *line))
{
    FILE *in = fopen(path, "r");
    if (!in) fail_msg("%s is missing", path);
    char *line = NULL;
    size_t cap = 0, n = 0;
    ssize_t len;
    while ((len = getline(&line, &cap, in)) > 0) {
        json_t *v = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, NULL);
        assert_non_null(v);
        f(v);
        json_decref(v);
        n++;
    }
    assert_true(n > 0);
    free(line);
    fclose(in);
}

static void round_trip(const gm_ids *ids, const char *text, size_t len)
{
    gm_str out = {0};
    assert_int_equal(gm_tokenizer_decode(tok, ids->data, ids->n, false, &out, NULL), GM_OK);
    assert_int_equal(out.len, len);
    assert_memory_equal(gm_str_c(&out), text, len);
    gm_str_fini(&out);
}

static void check_reference(const json_t *line)
{
    const json_t *text = json_object_get(line, "text");
    const char *s = json_string_value(text);
    size_t len = json_string_length(text);
    gm_ids ids = {0}, plain = {0};
    encode(s, len, GM_ADDED_MATCH, &ids);
    expect_ids(s, json_object_get(line, "ids"), &ids);
    encode(s, len, GM_ADDED_PLAIN, &plain);
    expect_ids(s, json_object_get(line, "plain"), &plain);
    round_trip(&ids, s, len);
    round_trip(&plain, s, len);
    gm_ids_fini(&ids);
    gm_ids_fini(&plain);
}

static void test_reference(void **state)
{
    (void)state;
    each_line(GM_FIXTURES "/text/tokens.jsonl", check_reference);
}

static void check_prompt(const json_t *line)
{
    const json_t *text = json_object_get(line, "text");
    gm_ids ids = {0};
    encode(json_string_value(text), json_string_length(text), GM_ADDED_MATCH, &ids);
    expect_ids(json_string_value(text), json_object_get(line, "ids"), &ids);
    gm_ids_fini(&ids);
    gm_str out = {0};
    const json_t *greedy = json_object_get(line, "greedy");
    int32_t some[256];
    size_t n = json_array_size(greedy);
    for (size_t i = 0; i < n; i++) some[i] = (int32_t)json_integer_value(json_array_get(greedy, i));
    assert_int_equal(gm_tokenizer_decode(tok, some, n, false, &out, NULL), GM_OK);
    assert_string_equal(gm_str_c(&out), json_string_value(json_object_get(line, "greedy_text")));
    gm_str_fini(&out);
}

static void test_prompts(void **state)
{
    (void)state;
    each_line(DIR "/prompts.jsonl", check_prompt);
}

static void test_facts(void **state)
{
    (void)state;
    size_t len = 0;
    assert_int_equal(gm_tokenizer_size(tok), 2536);
    assert_int_equal(gm_tokenizer_longest_token(tok), (int)strlen("<|begin_of_transcription|>"));
    assert_int_equal(gm_tokenizer_added_id(tok, "<|user|>"), 2507);
    assert_int_equal(gm_tokenizer_added_id(tok, "<|nobody|>"), -1);
    assert_int_equal(gm_tokenizer_added_id(tok, ""), -1);
    assert_true(gm_tokenizer_is_special(tok, 2507));
    assert_true(gm_tokenizer_is_added(tok, 2521) && !gm_tokenizer_is_special(tok, 2521)); /* <think> */
    assert_false(gm_tokenizer_is_added(tok, 5) || gm_tokenizer_is_added(tok, -1) ||
                 gm_tokenizer_is_special(tok, 2560));
    assert_null(gm_tokenizer_bytes(tok, 2536, &len));
    assert_null(gm_tokenizer_bytes(tok, -1, &len));
    gm_str s = {0};
    gm_ids ids = {0};
    encode(" the", 4, GM_ADDED_PLAIN, &ids);
    assert_int_equal(ids.n, 1);
    assert_true(gm_tokenizer_token_string(tok, ids.data[0], &s));
    assert_string_equal(s.data, "\u0120the");
    assert_false(gm_tokenizer_token_string(tok, 2540, &s));
    int32_t bad[] = {1, 2540};
    gm_error err = {0};
    assert_int_equal(gm_tokenizer_decode(tok, bad, 2, false, &s, &err), GM_EARG);
    gm_str_clear(&s);
    int32_t turn[] = {2507, 2521, ids.data[0]};
    assert_int_equal(gm_tokenizer_decode(tok, turn, 3, true, &s, NULL), GM_OK);
    assert_string_equal(s.data, "<think> the");
    gm_str_fini(&s);
    gm_ids_fini(&ids);
}

static void test_invalid_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *in, *same_as;
    } cases[] = {{"a\xff"
                  "b",
                  "a\ufffd"
                  "b"},
                 {"\xe4\xb8", "\ufffd"},
                 {"\xe4\xb8x", "\ufffdx"},
                 {"\xe0\x80", "\ufffd\ufffd"},
                 {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
                 {"\xf0\x9f\x9a!", "\ufffd!"},
                 {"\xc0\xaf", "\ufffd\ufffd"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gm_ids a = {0}, b = {0};
        encode(cases[i].in, strlen(cases[i].in), GM_ADDED_MATCH, &a);
        encode(cases[i].same_as, strlen(cases[i].same_as), GM_ADDED_MATCH, &b);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.data, b.data, a.n * sizeof *a.data);
        gm_ids_fini(&a);
        gm_ids_fini(&b);
    }
}

static void encode_filled(const char *unit, size_t len, double seconds)
{
    gm_str s = {0};
    while (s.len < len) gm_str_puts(&s, unit);
    gm_ids ids = {0};
    clock_t from = clock();
    encode(s.data, s.len, GM_ADDED_MATCH, &ids);
    double took = (double)(clock() - from) / CLOCKS_PER_SEC;
    round_trip(&ids, s.data, s.len);
    if (took > seconds) fail_msg("%zu bytes of \"%s\" took %.2f s", s.len, unit, took);
    gm_ids_fini(&ids);
    gm_str_fini(&s);
}

/* Runs and words without an end must stay near linear. The limits leave room for sanitizers. */
static void test_long_texts(void **state)
{
    (void)state;
    encode_filled(" ", 1 << 20, 5);
    encode_filled("\u3000", 1 << 20, 5);
    encode_filled("\n", 1 << 20, 5);
    encode_filled("a", 200000, 5);
    encode_filled("abc", 1 << 20, 10);
    encode_filled("=", 1 << 20, 10);
    encode_filled("1", 1 << 20, 10);
    encode_filled("<", 1 << 20, 10);
    encode_filled("<|user|", 1 << 20, 10);
    encode_filled(" x \n", 1 << 20, 10);
}

static void test_ranges(void **state)
{
    (void)state;
    const char *text = "<think>a b<think>c<think>";
    gm_ids ids = {0};
    gm_text_range r[] = {{0, 7}, {7, 12}, {18, 25}}; /* the second cuts the middle literal */
    assert_int_equal(gm_tokenizer_encode_ranges(tok, text, strlen(text), r, 3, &ids, NULL), GM_OK);
    int n = 0;
    for (size_t i = 0; i < ids.n; i++) n += ids.data[i] == 2521;
    assert_int_equal(n, 2);
    round_trip(&ids, text, strlen(text));
    gm_ids_fini(&ids);
}

/* Files that must be refused, each with a word of the message. */
static json_t *tiny_json(void)
{
    json_t *root = NULL;
    assert_int_equal(gm_json_load(&root, DIR "/tokenizer.json", NULL, NULL), GM_OK);
    return root;
}

static void expect_refused(json_t *root, const char *word)
{
    gm_str s = {0};
    gm_error err = {0};
    gm_tokenizer *t = NULL;
    gm_json_put(&s, root);
    gm_status st = gm_tokenizer_parse(&t, s.data, s.len, "x", &err);
    if (!st || t) fail_msg("accepted what should fail with \"%s\"", word);
    if (!strstr(err.message, word)) fail_msg("\"%s\" has no \"%s\"", err.message, word);
    gm_str_fini(&s);
    json_decref(root);
}

/* Set the member at a path of names and indices ("model.merges.0") to a JSON text. */
static json_t *changed(const char *path, const char *value)
{
    json_t *root = tiny_json(), *at = root, *v = json_loads(value, JSON_DECODE_ANY, NULL);
    char *names = gm_strdup(path), *save = NULL, *name = strtok_r(names, ".", &save), *next;
    assert_non_null(v);
    while ((next = strtok_r(NULL, ".", &save))) {
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(name)) : json_object_get(at, name);
        name = next;
    }
    if (json_is_array(at)) json_array_set_new(at, (size_t)atoi(name), v);
    else json_object_set_new(at, name, v);
    gm_free(names);
    return root;
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *word;
    } cases[] = {
        {"model", "7", "model"},
        {"model.type", "\"Unigram\"", "Unigram"},
        {"model.dropout", "0.1", "dropout"},
        {"model.unk_token", "\"<unk>\"", "unk_token"},
        {"model.byte_fallback", "true", "byte_fallback"},
        {"model.ignore_merges", "3", "ignore_merges"},
        {"model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
        {"model.vocab", "[]", "vocab"},
        {"model.vocab.!", "-1", "vocab"},
        {"model.vocab.!", "99999999999", "vocab"},
        {"model.vocab.!", "9000000", "9000000"},
        {"model.vocab.!", "1", "twice"},
        {"model.vocab.!", "\"0\"", "vocab"},
        {"model.vocab.a b", "3000", "alphabet"},
        {"model.merges", "{}", "merges"},
        {"model.merges.0", "\"ab\"", "merges[0]"},
        {"model.merges.1", "[\"a\"]", "merges[1]"},
        {"model.merges.2", "[\"a\", 1]", "merges[2]"},
        {"model.merges.3", "[\"\", \"a\"]", "merges[3]"},
        {"model.merges.3", "[\"qq\", \"zz\"]", "merges[3]"},
        {"model.merges.4", "\"a b c\"", "merges[4]"},
        {"normalizer", "{\"type\": \"NFC\"}", "NFC"},
        {"truncation", "{}", "truncation"},
        {"pre_tokenizer", "null", "pre_tokenizer"},
        {"pre_tokenizer", "{\"type\": \"Whitespace\"}", "Whitespace"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "Removed"},
        {"pre_tokenizer.pretokenizers.0.invert", "true", "invert"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\": \"a\"}", "Regex"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(\"", "regular expression"},
        {"pre_tokenizer.pretokenizers.1.add_prefix_space", "true", "add_prefix_space"},
        {"pre_tokenizer.pretokenizers.1.type", "\"Digits\"", "Digits"},
        {"post_processor.type", "\"TemplateProcessing\"", "TemplateProcessing"},
        {"decoder", "null", "decoder"},
        {"added_tokens", "{}", "added_tokens"},
        {"added_tokens.0", "5", "added_tokens[0]"},
        {"added_tokens.0.id", "-3", "added_tokens[0].id"},
        {"added_tokens.0.id", "2501", "twice"},
        {"added_tokens.1.content", "\"<|user|>\"", "twice"},
        {"added_tokens.1.content", "\"\"", "content"},
        {"added_tokens.1.content", "1", "content"},
        {"added_tokens.1.content", "\"!\"", "another id"},
        {"added_tokens.2.lstrip", "true", "lstrip"},
        {"added_tokens.2.normalized", "true", "normalized"},
        {"added_tokens.2.special", "1", "special"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(changed(cases[i].path, cases[i].value), cases[i].word);
    expect_refused(json_array(), "object");
    gm_error err = {0};
    gm_tokenizer *t = NULL;
    assert_int_equal(gm_tokenizer_open(&t, GM_MODELS "/nothing-here", &err), GM_EIO);
    assert_int_equal(gm_tokenizer_parse(&t, "{", 1, "x", &err), GM_EFORMAT);
}

/* Merges written as "a b" give the same ids as pairs. */
static void test_merge_strings(void **state)
{
    (void)state;
    json_t *root = tiny_json(), *merges = json_object_get(json_object_get(root, "model"), "merges"), *v;
    size_t i;
    json_array_foreach(merges, i, v)
    {
        gm_str s = {0};
        gm_str_printf(&s, "%s %s", json_string_value(json_array_get(v, 0)),
                      json_string_value(json_array_get(v, 1)));
        json_array_set_new(merges, i, json_string(s.data));
        gm_str_fini(&s);
    }
    gm_str s = {0};
    gm_tokenizer *t = NULL;
    gm_json_put(&s, root);
    assert_int_equal(gm_tokenizer_parse(&t, s.data, s.len, "x", NULL), GM_OK);
    const char *text = "The quick brown fox; unbelievable   words\n";
    gm_ids a = {0}, b = {0};
    encode(text, strlen(text), GM_ADDED_MATCH, &a);
    assert_int_equal(gm_tokenizer_encode(t, text, strlen(text), GM_ADDED_MATCH, &b, NULL), GM_OK);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.data, b.data, a.n * sizeof *a.data);
    gm_ids_fini(&a);
    gm_ids_fini(&b);
    gm_str_fini(&s);
    gm_tokenizer_close(t);
    json_decref(root);
}

/* Every allocation that can report failure, made to fail in turn. */
static void test_no_memory(void **state)
{
    (void)state;
    gm_error err = {0};
    gm_tokenizer *t = NULL;
    gm_status st = GM_ENOMEM;
    long nth = 1;
    for (; st; nth++) {
        gm_alloc_fail_at(nth);
        st = gm_tokenizer_open(&t, DIR, &err);
        gm_alloc_fail_at(0);
        if (st) assert_int_equal(st, GM_ENOMEM);
    }
    assert_true(nth > 3);
    gm_tokenizer_close(t);
    char word[200];
    memset(word, 'q', sizeof word);
    gm_ids ids = {0};
    for (st = GM_ENOMEM, nth = 1; st; nth++) {
        gm_alloc_fail_at(nth);
        st = gm_tokenizer_encode(tok, word, sizeof word, GM_ADDED_PLAIN, &ids, &err);
        gm_alloc_fail_at(0);
        if (st) assert_int_equal(st, GM_ENOMEM);
        if (st) assert_int_equal(ids.n, 0);
    }
    assert_true(nth > 2);
    round_trip(&ids, word, sizeof word);
    gm_ids_fini(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),  cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_facts),      cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_long_texts), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_merge_strings),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
