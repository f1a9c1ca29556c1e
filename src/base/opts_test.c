/* clang-format off */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */
#include <stdio.h>
#include <string.h>

#include "base/opts.h"

static gm_status parse(gm_settings *s, gm_error *err, const char *line)
{
    static char copy[1024];
    char *argv[64], *save = NULL;
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
    return gm_settings_parse(s, GM_OPT_SERVE, argc, argv, err);
}

static void test_human(void **state)
{
    static const struct {
        const char *text;
        int64_t v;
    } good[] = {{"0", 0},        {"1024", 1024}, {"32k", 32000},          {"32K", 32768},         {"2.5k", 2500},
                {"1m", 1000000}, {"1M", 1048576}, {"3g", 3000000000},      {"2G", 2147483648},     {"1t", 1000000000000},
                {"1T", 1099511627776}, {"-1", -1}, {"128k", 128000}};
    static const char *const bad[] = {"", "k", "abc", "1x", "1.5K", "1.5", "0x10", "1e3", "1kk", " 1", "nan", "inf", "99999999999t"};
    int64_t v;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(gm_human_int(&v, good[i].text, NULL), GM_OK);
        assert_true(v == good[i].v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(gm_human_int(&v, bad[i], NULL), GM_EARG);
}

static void test_forms(void **state)
{
    gm_settings s;
    gm_error err = {0};
    gm_str text = {0};
    (void)state;
    assert_int_equal(parse(&s, &err, "M --port=1 --port 2 --max_model_len 4K --no-enable-chunked-prefill --enable-chunked-prefill "
                                     "--served-model-name a b -tp 2 --hf-overrides.a.b 3 --hf-overrides.a.c+ x --hf-overrides.a.c+=y,z "
                                     "--attention-backend X -cc.mode=3 --trust-remote-code --api-key secret -O3 --no-enforce-eager "
                                     "--max-logprobs -1 --temp_unused"),
                     GM_EARG);
    assert_string_equal(err.message, "unrecognized arguments: --temp-unused");
    assert_int_equal(parse(&s, &err, "M --port=1 --port 2 --max_model_len 4K --no-enable-chunked-prefill --enable-chunked-prefill "
                                     "--served-model-name a b -tp 2 --hf-overrides.a.b 3 --hf-overrides.a.c+ x --hf-overrides.a.c+=y,z "
                                     "--attention-backend X -cc.mode=3 --trust-remote-code --api-key secret -O3 --no-enforce-eager "
                                     "--max-logprobs -1"),
                     GM_OK);
    assert_string_equal(s.model, "M");
    assert_int_equal(s.port, 2);
    assert_int_equal(s.max_model_len, 4096);
    assert_true(s.enable_chunked_prefill);
    assert_int_equal(json_array_size(s.served_model_name), 2);
    assert_int_equal(s.tensor_parallel_size, 2);
    assert_int_equal(s.max_logprobs, -1);
    gm_json_put(&text, s.hf_overrides);
    assert_string_equal(gm_str_c(&text), "{\"a\":{\"b\":3,\"c\":[\"x\",\"y\",\"z\"]}}");
    assert_int_equal(json_array_size(s.ignored), 4);
    gm_str_clear(&text);
    gm_settings_put_changed(&s, &text);
    assert_non_null(strstr(gm_str_c(&text), "'port': 2"));
    assert_null(strstr(gm_str_c(&text), "secret"));
    assert_null(strstr(gm_str_c(&text), "chunked"));
    gm_str_fini(&text);
    gm_settings_fini(&s);
}

static void test_defaults(void **state)
{
    gm_settings s;
    (void)state;
    assert_int_equal(parse(&s, NULL, "M"), GM_OK);
    assert_int_equal(s.port, 8000);
    assert_true(s.enable_auto_tool_choice && s.enable_chunked_prefill && s.scheduler_reserve_full_isl);
    assert_string_equal(s.reasoning_parser, "glm45");
    assert_int_equal(s.max_request_bytes, 32 << 20);
    assert_int_equal(s.max_num_queued_reqs, -1);
    gm_settings_fini(&s);
    assert_int_equal(parse(&s, NULL, "M --max-model-len auto"), GM_OK);
    assert_int_equal(s.max_model_len, -1);
    gm_settings_fini(&s);
}

static void test_refusals(void **state)
{
    static const char *const cases[][2] = {
        {"M --dtype int3", "argument --dtype: invalid choice: 'int3' (choose from 'auto', 'bfloat16', 'float32', 'float')"},
        {"M --port", "argument --port: expected one argument"},
        {"M --port -3", "argument --port: -3 is not between 0 and 65535"},
        {"M --swap-space 3", "argument --swap-space: is a vLLM flag that glimmer does not have"},
        {"M --no-enable-lora", "argument --no-enable-lora: is a vLLM flag that glimmer does not have"},
        {"M -dpl 3", "argument -dpl: is a vLLM flag that glimmer does not have"},
        {"M N", "unrecognized arguments: N"},
        {"M --temperature 1", "argument --temperature: not a flag of glimmer serve"},
        {"M --port.x 3", "argument --port: takes no dotted keys"},
        {"M --hf-overrides [1]", "argument --hf-overrides: needs a JSON object"},
    };
    gm_settings s;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gm_error err = {0};
        assert_int_equal(parse(&s, &err, cases[i][0]), GM_EARG);
        assert_string_equal(err.message, cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_human), cmocka_unit_test(test_forms),
                                       cmocka_unit_test(test_defaults), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
