/* Data sets on the tokenizer of the shipped model: lengths, order, exactness, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench_test_util.h"
#include "bench/body.h"
#include "bench/dataset.h"

#define MODEL GM_MODELS "/tiny-glm-5.3-flash"

static gm_tokenizer *tokenizer;

static gm_status draw(gm_dataset *d, bool with_tokenizer, gm_error *err, int n, const char *const *words)
{
    gm_settings s;
    gm_dataset_params p = {.tokenizer = with_tokenizer ? tokenizer : NULL,
                           .model_dir = MODEL,
                           .vocab_size = 1000,
                           .keep_ids = true};
    assert_int_equal(settings_of(&s, n, words, err), GM_OK);
    gm_status st = gm_dataset_draw(d, &s, &p, err);
    gm_settings_fini(&s);
    return st;
}
#define DRAW(d, ...) assert_int_equal(draw(d, true, NULL, WORDS(__VA_ARGS__)), GM_OK)
#define REFUSED(...)                                                                                         \
    do {                                                                                                     \
        gm_dataset no;                                                                                       \
        assert_int_not_equal(draw(&no, true, NULL, WORDS(__VA_ARGS__)), GM_OK);                              \
    } while (0)

static void exact(const gm_dataset *d)
{
    for (size_t i = 0; i < d->n; i++) {
        const gm_sample *s = &d->samples[i];
        gm_ids ids = {0};
        assert_int_equal(gm_tokenizer_encode(tokenizer, s->text, s->text_len, GM_ADDED_MATCH, &ids, NULL),
                         GM_OK);
        assert_int_equal(ids.n, s->prompt_len);
        assert_int_equal(s->n_ids, s->prompt_len);
        assert_memory_equal(ids.data, s->ids, ids.n * sizeof *ids.data);
        gm_ids_fini(&ids);
    }
}

/* The published load: 1,000 prompts of 2,048 tokens, ratio 0.8. */
static void test_random_range(void **state)
{
    (void)state;
    gm_dataset d;
    int32_t low = INT32_MAX, high = 0, out_low = INT32_MAX, out_high = 0;
    DRAW(&d, "--num-prompts", "1000", "--random-input-len", "2048", "--random-output-len", "256",
         "--random-range-ratio", "0.8");
    assert_int_equal(d.n, 1000);
    assert_int_equal(d.samples[0].prompt_len, 3198);
    assert_int_equal(d.samples[3].prompt_len, 1293);
    assert_int_equal(d.samples[0].output_len, 278);
    for (size_t i = 0; i < d.n; i++) {
        const gm_sample *s = &d.samples[i];
        low = s->prompt_len < low ? s->prompt_len : low;
        high = s->prompt_len > high ? s->prompt_len : high;
        out_low = s->output_len < out_low ? s->output_len : out_low;
        out_high = s->output_len > out_high ? s->output_len : out_high;
    }
    assert_int_equal(low, 409);
    assert_int_equal(high, 3681);
    assert_int_equal(out_low, 51);
    assert_int_equal(out_high, 461);
    exact(&d);
    gm_dataset_fini(&d);
}

static void test_random_corners(void **state)
{
    (void)state;
    gm_dataset d;
    DRAW(&d, "--num-prompts", "300", "--random-input-len", "1", "--random-output-len", "1");
    for (size_t i = 0; i < d.n; i++)
        assert_true(d.samples[i].prompt_len == 1 && d.samples[i].output_len == 1 &&
                    d.samples[i].text_len > 0);
    exact(&d);
    gm_dataset_fini(&d);
    DRAW(&d, "--num-prompts", "2", "--random-input-len", "96000", "--random-output-len", "32000");
    assert_int_equal(d.samples[1].prompt_len, 96000);
    exact(&d);
    gm_dataset_fini(&d);
    DRAW(&d, "--num-prompts", "200", "--random-input-len", "100", "--random-range-ratio",
         "{\"input\": 0.0, \"output\": 0.5}", "--random-output-len", "10");
    for (size_t i = 0; i < d.n; i++) {
        assert_int_equal(d.samples[i].prompt_len, 100);
        assert_in_range(d.samples[i].output_len, 5, 15);
    }
    gm_dataset_fini(&d);
    DRAW(&d, "--num-prompts", "20", "--random-input-len", "40", "--random-prefix-len", "30");
    int same = 0;
    for (size_t i = 1; i < d.n; i++)
        same += !memcmp(d.samples[i].ids, d.samples[0].ids, 25 * sizeof(int32_t));
    assert_true(same >= 15); /* a round trip may change ids of the prefix, of all prompts alike */
    assert_int_equal(d.samples[0].prompt_len, 70);
    exact(&d);
    gm_dataset_fini(&d);
    DRAW(&d, "--num-prompts", "3", "--input-len", "7", "--output-len", "9");
    assert_true(d.samples[2].prompt_len == 7 && d.samples[2].output_len == 9);
    gm_dataset_fini(&d);
    REFUSED("--random-range-ratio", "1.0");
    REFUSED("--random-range-ratio", "-0.1");
    REFUSED("--random-range-ratio", "half");
    REFUSED("--random-range-ratio", "{\"input\": 0.5}");
    REFUSED("--random-input-len", "0");
    REFUSED("--dataset-path", "x");
}

static void test_seed(void **state)
{
    (void)state;
    gm_dataset a, b, c;
    DRAW(&a, "--num-prompts", "5", "--random-input-len", "50", "--seed", "7");
    DRAW(&b, "--num-prompts", "5", "--random-input-len", "50", "--seed", "7");
    DRAW(&c, "--num-prompts", "5", "--random-input-len", "50", "--seed", "8");
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(a.samples[i].text, b.samples[i].text);
        assert_string_not_equal(a.samples[i].text, c.samples[i].text);
    }
    gm_dataset w;
    gm_dataset_params p = {.tokenizer = tokenizer};
    assert_int_equal(gm_dataset_draw_warmups(&w, &a, 12, 7, &p, NULL), GM_OK);
    for (size_t i = 0; i < w.n; i++) {
        assert_int_equal(w.samples[i].prompt_len, 50);
        for (size_t k = 0; k < a.n; k++) assert_string_not_equal(w.samples[i].text, a.samples[k].text);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(w.samples[i].text, w.samples[k].text);
    }
    gm_dataset_fini(&w);
    gm_dataset_fini(&a);
    gm_dataset_fini(&b);
    gm_dataset_fini(&c);
}

static void test_ids_only(void **state)
{
    (void)state;
    gm_dataset d;
    assert_int_equal(draw(&d, false, NULL, WORDS("--num-prompts", "4", "--random-input-len", "20")), GM_OK);
    for (size_t i = 0; i < d.n; i++) {
        assert_null(d.samples[i].text);
        assert_int_equal(d.samples[i].n_ids, 20);
        for (int k = 1; k < 20; k++) assert_int_equal(d.samples[i].ids[k], (d.samples[i].ids[0] + k) % 1000);
    }
    gm_settings s;
    gm_body_maker m;
    gm_str body = {0};
    assert_int_equal(
        settings_of(&s, WORDS("--temperature", "0", "--extra-body", "{\"min_tokens\": 3, \"stream\": true}"),
                    NULL),
        GM_OK);
    gm_body_maker_init(&m, &s, false, "m\"x", true);
    d.samples[0].n_ids = 2;
    d.samples[0].ids[0] = 0;
    d.samples[0].ids[1] = 154819;
    d.samples[0].output_len = 6;
    gm_body_make(&m, &d.samples[0], &body);
    assert_string_equal(gm_str_c(&body), "{\"prompt\":[0,154819],\"max_tokens\":6,\"model\":\"m\\\"x\","
                                         "\"repetition_penalty\":1.0,\"stream\":true,"
                                         "\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,"
                                         "\"temperature\":0.0,\"min_tokens\":3}");
    gm_str_fini(&body);
    gm_body_maker_fini(&m);
    gm_settings_fini(&s);
    gm_dataset_fini(&d);
}

static char *write_file(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/gm_dataset_test_%d", (int)getpid());
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static void test_sharegpt(void **state)
{
    (void)state;
    gm_dataset d;
    gm_str text = {0};
    gm_str_puts(&text, "[{\"conversations\":[{\"value\":\"only one\"}]},{\"id\":1}");
    for (int i = 0; i < 20; i++)
        gm_str_printf(&text,
                      ",{\"conversations\":[{\"from\":\"human\",\"value\":\"Question number %d about the cat "
                      "and the dog?\"},"
                      "{\"value\":\"%s\"}]}",
                      i, i == 3 ? "no" : "An answer that is long enough to be kept.");
    gm_str_puts(&text, "]");
    char *path = write_file(gm_str_c(&text));
    /* Python: random.seed(0); l = list(range(20)); random.shuffle(l) begins 10 18 16 14 0 17 */
    DRAW(&d, "--dataset-name", "sharegpt", "--dataset-path", path, "--num-prompts", "6");
    static const int first[] = {10, 18, 16, 14, 0, 17};
    for (int i = 0; i < 6; i++) {
        char want[80];
        snprintf(want, sizeof want, "Question number %d about the cat and the dog?", first[i]);
        assert_string_equal(d.samples[i].text, want);
        assert_true(d.samples[i].output_len >= 4);
    }
    gm_dataset_fini(&d);
    DRAW(&d, "--dataset-name", "sharegpt", "--dataset-path", path, "--num-prompts", "30",
         "--disable-shuffle");
    assert_int_equal(d.n, 30);
    assert_int_equal(d.n_oversampled, 11); /* one of the twenty has an answer that is too short */
    gm_dataset_fini(&d);
    DRAW(&d, "--dataset-name", "sharegpt", "--dataset-path", path, "--num-prompts", "30", "--no-oversample",
         "--sharegpt-output-len", "2");
    assert_int_equal(d.n, 20);
    assert_int_equal(d.samples[0].output_len, 2);
    gm_dataset_fini(&d);
    REFUSED("--dataset-name", "sharegpt");
    REFUSED("--dataset-name", "sharegpt", "--dataset-path", "/nowhere");
    write_file("{\"a\":1}");
    REFUSED("--dataset-name", "sharegpt", "--dataset-path", path);
    gm_str_fini(&text);
    unlink(path);
}

static void test_custom(void **state)
{
    (void)state;
    gm_dataset d;
    char *path = write_file(
        "{\"prompt\": \"one\", \"output_tokens\": 11}\n\n{\"prompt\": \"two\", \"output_tokens\": 22}\n");
    DRAW(&d, "--dataset-name", "custom", "--dataset-path", path, "--num-prompts", "2", "--disable-shuffle",
         "--custom-output-len", "-1", "--skip-chat-template");
    assert_string_equal(d.samples[0].text, "one");
    assert_int_equal(d.samples[1].output_len, 22);
    gm_dataset_fini(&d);
    DRAW(&d, "--dataset-name", "custom", "--dataset-path", path, "--num-prompts", "2", "--disable-shuffle");
    assert_int_equal(d.samples[0].output_len, 256);
    assert_non_null(strstr(d.samples[0].text, "<|user|>"));
    assert_non_null(strstr(d.samples[0].text, "one"));
    gm_dataset_fini(&d);
    write_file("{\"prompt\": \"one\"}\n");
    REFUSED("--dataset-name", "custom", "--dataset-path", path, "--custom-output-len", "-1");
    write_file("{\"prompt\": 5}\n");
    REFUSED("--dataset-name", "custom", "--dataset-path", path);
    write_file("");
    REFUSED("--dataset-name", "custom", "--dataset-path", path);
    unlink(path);
}

static void test_sonnet(void **state)
{
    (void)state;
    gm_dataset d;
    gm_str text = {0};
    for (int i = 0; i < 60; i++) gm_str_printf(&text, "Line %d of a poem on the sea and the wind,\n", i);
    char *path = write_file(gm_str_c(&text));
    DRAW(&d, "--dataset-name", "sonnet", "--dataset-path", path, "--num-prompts", "5");
    for (size_t i = 0; i < d.n; i++) {
        assert_in_range(d.samples[i].prompt_len, 400, 550);
        assert_int_equal(d.samples[i].output_len, 150);
        assert_non_null(strstr(d.samples[i].text, "Pick as many lines as you can"));
    }
    assert_string_not_equal(d.samples[0].text, d.samples[1].text);
    gm_dataset_fini(&d);
    REFUSED("--dataset-name", "sonnet", "--dataset-path", path, "--sonnet-input-len", "3");
    gm_str_fini(&text);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_range), cmocka_unit_test(test_random_corners),
        cmocka_unit_test(test_seed),         cmocka_unit_test(test_ids_only),
        cmocka_unit_test(test_sharegpt),     cmocka_unit_test(test_custom),
        cmocka_unit_test(test_sonnet)};
    gm_error err;
    if (gm_tokenizer_open(&tokenizer, MODEL, &err)) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    gm_tokenizer_close(tokenizer);
    return rc;
}
