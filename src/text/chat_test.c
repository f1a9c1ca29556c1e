#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "text/chat.h"
#include "text/sha256.h"
#include "text/text_internal.h"

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

/* A request as JSON: messages, tools, reasoning_effort, kwargs, generate (default true), continue. */
static gm_status render(gm_chat_prompt *p, gm_chat_format f, const char *json, gm_error *err)
{
    json_t *root = NULL;
    gm_error je = {0};
    if (gm_json_parse(&root, json, strlen(json), "test", NULL, &je)) fail_msg("%s", je.message);
    gm_chat_request req = {
        .messages = json_object_get(root, "messages"),
        .tools = json_object_get(root, "tools"),
        .reasoning_effort = json_object_get(root, "reasoning_effort"),
        .kwargs = json_object_get(root, "kwargs"),
        .add_generation_prompt = !json_is_false(json_object_get(root, "generate")),
        .continue_final_message = json_is_true(json_object_get(root, "continue")),
    };
    gm_status st = gm_chat_render(p, f, &req, err);
    json_decref(root);
    return st;
}

static void expect(gm_chat_format f, const char *json, const char *text, bool thinking)
{
    gm_chat_prompt p = {0};
    gm_error err = {0};
    if (render(&p, f, json, &err)) fail_msg("%s: %s", json, err.message);
    assert_string_equal(gm_str_c(&p.text), text);
    assert_int_equal(p.thinking, thinking);
    size_t at = 0; /* spans tile the text and alternate */
    for (size_t i = 0; i < p.n_spans; i++) {
        assert_int_equal(p.spans[i].begin, at);
        assert_true(p.spans[i].end > at);
        if (i) assert_int_not_equal(p.spans[i].content, p.spans[i - 1].content);
        at = p.spans[i].end;
    }
    assert_int_equal(at, p.text.len);
    gm_chat_prompt_fini(&p);
}

static void expect_error(gm_chat_format f, const char *json, const char *path)
{
    gm_chat_prompt p = {0};
    gm_error err = {0};
    assert_int_equal(render(&p, f, json, &err), GM_EARG);
    if (!strstr(err.message, path)) fail_msg("\"%s\" has no \"%s\"", err.message, path);
    assert_null(p.text.data);
}

static void expect_hash(gm_chat_format f, const char *json, size_t len, const char *sha256)
{
    gm_chat_prompt p = {0};
    char hex[65];
    assert_int_equal(render(&p, f, json, NULL), GM_OK);
    gm_sha256_hex(hex, p.text.data, p.text.len);
    assert_int_equal(p.text.len, len);
    assert_string_equal(hex, sha256);
    gm_chat_prompt_fini(&p);
}

static void test_sha256(void **state)
{
    (void)state;
    char hex[65];
    gm_sha256_hex(hex, "", 0);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    gm_sha256_hex(hex, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_glm52_goldens(void **state)
{
    (void)state;
    expect_hash(GM_CHAT_GLM52, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}", 76,
                "9133f6aef56934eaf376a9b56cd89b65d1a25544abbff7ad95a03086b8330d0d");
    expect_hash(GM_CHAT_GLM52,
                "{\"reasoning_effort\":\"high\",\"messages\":[{\"role\":\"user\",\"content\":\"Q\"},{"
                "\"role\":\"assistant\","
                "\"content\":\"<think>r</think>A\"},{\"role\":\"user\",\"content\":\"Next\"}]}",
                114, "f5721889b691af1ca56d746df334bb69b63dc351ef2ba71b6291d10838b2394d");
    expect_hash(
        GM_CHAT_GLM52,
        "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"Get "
        "weather\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}},\"strict\":"
        "true}}],"
        "\"messages\":[{\"role\":\"user\",\"content\":\"Weather?\"},{\"role\":\"assistant\",\"content\":\"\","
        "\"tool_calls\":[{\"function\":{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\": \\\"北京\\\", "
        "\\\"days\\\": 2}\"}}]},"
        "{\"role\":\"tool\",\"content\":\"sunny\"},{\"role\":\"tool\",\"content\":\"warm\"}]}",
        899, "eabc1924f2f336acb27565e7de91f315133e8c43126291985d99a93e85384e7b");
    expect(GM_CHAT_GLM52,
           "{\"kwargs\":{\"enable_thinking\":false},\"messages\":[{\"role\":\"system\",\"content\":\"Be "
           "exact.\"},"
           "{\"role\":\"user\",\"content\":\"Hi\"}]}",
           "[gMASK]<sop><|system|>Be exact.<|user|>Hi<|assistant|><think></think>", false);
}

static void test_efforts(void **state)
{
    (void)state;
    static const struct {
        const char *effort, *glm52, *glm53;
    } cases[] = {{"null", "Max", "Max"},      {"\"none\"", NULL, "Max"},    {"\"minimal\"", "Max", "Max"},
                 {"\"low\"", "Max", "Low"},   {"\"medium\"", "Max", "Max"}, {"\"high\"", "High", "High"},
                 {"\"xhigh\"", "Max", "Max"}, {"\"max\"", "Max", "Max"},    {"\"\"", "Max", "Max"},
                 {"7", "Max", "Max"},         {"[\"high\"]", "Max", "Max"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gm_str json = {0}, text = {0};
        gm_str_printf(&json, "{\"reasoning_effort\":%s,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                      cases[i].effort);
        gm_str_printf(&text, "[gMASK]<sop><|system|>Reasoning Effort: %s<|user|>x<|assistant|><think>",
                      cases[i].glm53);
        expect(GM_CHAT_GLM53, json.data, text.data, true);
        gm_str_clear(&text);
        if (cases[i].glm52)
            gm_str_printf(&text, "[gMASK]<sop><|system|>Reasoning Effort: %s<|user|>x<|assistant|><think>",
                          cases[i].glm52);
        else gm_str_puts(&text, "[gMASK]<sop><|user|>x<|assistant|><think></think>");
        expect(GM_CHAT_GLM52, json.data, text.data, cases[i].glm52 != NULL);
        gm_str_fini(&json);
        gm_str_fini(&text);
    }
#define ONE_USER "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"
    expect(GM_CHAT_GLM52, "{\"kwargs\":{\"reasoning_effort\":\"high\"}," ONE_USER,
           "[gMASK]<sop><|system|>Reasoning Effort: High<|user|>x<|assistant|><think>", true);
    expect(GM_CHAT_GLM52, "{\"reasoning_effort\":\"none\",\"kwargs\":{\"enable_thinking\":true}," ONE_USER,
           "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>x<|assistant|><think>", true);
    expect(GM_CHAT_GLM53, "{\"kwargs\":{\"enable_thinking\":false}," ONE_USER,
           "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>x<|assistant|><think>", true);
    expect(GM_CHAT_GLM51, "{\"kwargs\":{\"enable_thinking\":false}," ONE_USER,
           "[gMASK]<sop><|user|>x<|assistant|></think>", false);
    expect(GM_CHAT_GLM5, "{" ONE_USER, "[gMASK]<sop><|user|>x<|assistant|><think>", true);
    expect(GM_CHAT_GLM5, "{\"generate\":false," ONE_USER, "[gMASK]<sop><|user|>x", false);
}

#define TURNS                                                                                                \
    "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"reasoning_content\":"     \
    "\"\\nr1 \",\"content\":\" b\\n\"},"                                                                     \
    "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"reasoning\":\"r2\",\"content\":null}]}"
#define H53 "[gMASK]<sop><|system|>Reasoning Effort: Max"

static void test_thinking_history(void **state)
{
    (void)state;
    expect(GM_CHAT_GLM53, "{" TURNS,
           H53 "<|user|>a<|assistant|><think>\nr1 "
               "</think>b<|user|>c<|assistant|><think>r2</think><|assistant|><think>",
           true);
    expect(
        GM_CHAT_GLM53, "{\"kwargs\":{\"clear_thinking\":true}," TURNS,
        H53
        "<|user|>a<|assistant|><think></think>b<|user|>c<|assistant|><think>r2</think><|assistant|><think>",
        true);
    expect(
        GM_CHAT_GLM52, "{" TURNS,
        H53
        "<|user|>a<|assistant|><think></think>b<|user|>c<|assistant|><think>r2</think><|assistant|><think>",
        true);
    expect(GM_CHAT_GLM52, "{\"kwargs\":{\"clear_thinking\":false}," TURNS,
           H53 "<|user|>a<|assistant|><think>\nr1 "
               "</think>b<|user|>c<|assistant|><think>r2</think><|assistant|><think>",
           true);
    expect(GM_CHAT_GLM51, "{" TURNS,
           "[gMASK]<sop><|user|>a<|assistant|></think>b<|user|>c<|assistant|><think>r2</"
           "think><|assistant|><think>",
           true);
    expect(GM_CHAT_GLM5, "{\"kwargs\":{\"clear_thinking\":false}," TURNS,
           "[gMASK]<sop><|user|>a<|assistant|><think>r1</think>b<|user|>c<|assistant|><think>r2</"
           "think><|assistant|><think>",
           true);
    /* reasoning inside the content: up to the first close tag, the body behind the last */
    expect(GM_CHAT_GLM53,
           "{\"generate\":false,\"messages\":[{\"role\":\"assistant\",\"content\":\"x<think>y<think>z</"
           "think>p</think> q \"}]}",
           H53 "<|assistant|><think>z</think>q", false);
    expect(GM_CHAT_GLM53,
           "{\"generate\":false,\"messages\":[{\"role\":\"assistant\",\"reasoning_content\":\"\",\"content\":"
           "\"z</think>q\\u3000\"}]}",
           H53 "<|assistant|><think></think>z</think>q", false);
}

#define CALL(args)                                                                                           \
    "{\"generate\":false,\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{" \
    "\"name\":\"f\",\"arguments\":" args "}}]}]}"
#define CALLED(args) H53 "<|assistant|><think></think><tool_call>f" args "</tool_call>"
#define ARG(k, v) "<arg_key>" k "</arg_key><arg_value>" v "</arg_value>"

static void test_arguments(void **state)
{
    (void)state;
    expect(GM_CHAT_GLM53, CALL("{\"s\":\"a<b\\n\",\"n\":1,\"o\":{\"x\":[1.0,true,null,\"é\"]}}"),
           CALLED(ARG("s", "a<b\n") ARG("n", "1") ARG("o", "{\"x\": [1.0, true, null, \"é\"]}")), false);
    expect(GM_CHAT_GLM53, CALL("\"{\\\"z\\\":1,\\\"a\\\":\\\"2\\\"}\""), CALLED(ARG("z", "1") ARG("a", "2")),
           false);
    expect(GM_CHAT_GLM53, CALL("\"\""), CALLED(""), false);
    expect(GM_CHAT_GLM53, CALL("\" \\n\""), CALLED(""), false);
    expect(GM_CHAT_GLM53, CALL("null"), CALLED(""), false);
    expect(GM_CHAT_GLM53, CALL("\"null\""), CALLED(""), false);
    expect(GM_CHAT_GLM53, CALL("\"{\\\"cmd\\\": \\\"ls\""), CALLED(ARG("arguments", "{\"cmd\": \"ls")),
           false);
    expect(GM_CHAT_GLM53, CALL("\"[1]\""), CALLED(ARG("arguments", "[1]")), false);
    expect(GM_CHAT_GLM53, CALL("\"\\\"x\\\"\""), CALLED(ARG("arguments", "\"x\"")), false);
    expect(GM_CHAT_GLM53, CALL("[1, 2]"), CALLED(ARG("arguments", "[1, 2]")), false);
    expect(GM_CHAT_GLM53, CALL("\"\\\"{\\\\\\\"a\\\\\\\":1}\\\"\""), CALLED(ARG("a", "1")),
           false); /* encoded twice */
    expect(GM_CHAT_GLM53,
           "{\"generate\":false,\"messages\":[{\"role\":\"assistant\",\"content\":\"ok\",\"tool_calls\":[{"
           "\"name\":\"f\",\"arguments\":{}},"
           "{\"function\":{\"name\":\"g\"}}]}]}",
           H53 "<|assistant|><think></think>ok<tool_call>f</tool_call><tool_call>g</tool_call>", false);
}

static void test_content_parts(void **state)
{
    (void)state;
    expect(GM_CHAT_GLM53,
           "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\",{"
           "\"type\":\"image_url\",\"image_url\":{}},"
           "{\"type\":\"video\"},{\"type\":\"input_audio\"}]}]}",
           H53
           "<|user|>ab<|begin_of_image|><|image|><|end_of_image|><|begin_of_video|><|video|><|end_of_video|>"
           "<|begin_of_audio|><|end_of_audio|><|assistant|><think>",
           true);
    expect(GM_CHAT_GLM52, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
           H53 "<|user|><reminder>You are unable to process this image because you don't have multi-modal "
               "input ability. "
               "Try different methods.</reminder><|assistant|><think>",
           true);
    expect(GM_CHAT_GLM53,
           "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"ok\"}]}],"
           "\"generate\":false}",
           H53 "<|assistant|><think></think>ok", false);
    expect(GM_CHAT_GLM53,
           "{\"messages\":[{\"role\":\"user\",\"content\":[]},{\"role\":\"user\",\"content\":null},{\"role\":"
           "\"user\"}]}",
           H53 "<|user|><|user|><|user|><|assistant|><think>", true);
    expect_error(GM_CHAT_GLM53,
                 "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{"
                 "\"type\":\"blob\"}]}]}",
                 "messages[0].content[1].type");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]}",
                 "messages[0].content[0].type");
    expect_error(GM_CHAT_GLM53,
                 "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]}",
                 "messages[0].content[0].text");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[{\"role\":\"user\",\"content\":[4]}]}",
                 "messages[0].content[0]");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", "messages[0].content");
    expect_error(GM_CHAT_GLM53, "{\"messages\":{}}", "messages:");
    expect_error(GM_CHAT_GLM53, "{}", "messages:");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[1]}", "messages[0]");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[{\"role\":\"user\"},{\"role\":2}]}", "messages[1].role");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}",
                 "messages[0].tool_calls");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]}]}",
                 "messages[0].tool_calls[0]");
    expect_error(GM_CHAT_GLM53,
                 "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
                 "messages[0].tool_calls[0].function.name");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[],\"tools\":[1]}", "tools[0]");
    expect_error(GM_CHAT_GLM53, "{\"messages\":[],\"tools\":{}}", "tools");
}

#define RESULT(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"
#define TWO_CALLS                                                                                            \
    "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\"}},{"  \
    "\"id\":\"2\",\"function\":{\"name\":\"g\"}}]},"
#define TWO_CALLED                                                                                           \
    H53 "<|assistant|><think></think><tool_call>f</tool_call><tool_call>g</tool_call><|observation|>"
#define SAID(text) "<tool_response>" text "</tool_response>"
#define GEN "<|assistant|><think>"

static void test_tool_results(void **state)
{
    (void)state;
    expect(GM_CHAT_GLM53, TWO_CALLS RESULT("2", "two") "," RESULT("1", "one") "]}",
           TWO_CALLED SAID("one") SAID("two") GEN, true);
    expect(GM_CHAT_GLM52, TWO_CALLS RESULT("2", "two") "," RESULT("1", "one") "]}",
           TWO_CALLED SAID("two") SAID("one") GEN, true);
    expect(GM_CHAT_GLM53, TWO_CALLS RESULT("2", "two") "," RESULT("2", "one") "]}",
           TWO_CALLED SAID("two") SAID("one") GEN, true);
    expect(GM_CHAT_GLM53, TWO_CALLS RESULT("2", "two") "," RESULT("9", "one") "]}",
           TWO_CALLED SAID("two") SAID("one") GEN, true);
    expect(GM_CHAT_GLM53, TWO_CALLS RESULT("2", "two") ",{\"role\":\"tool\",\"content\":\"one\"}]}",
           TWO_CALLED SAID("two") SAID("one") GEN, true);
    expect(GM_CHAT_GLM53, TWO_CALLS RESULT("2", "two") "]}", TWO_CALLED SAID("two") GEN, true);
    for (int f = GM_CHAT_GLM51; f <= GM_CHAT_GLM53; f++) {
        gm_chat_prompt p = {0};
        assert_int_equal(render(&p, (gm_chat_format)f,
                                "{\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":[{"
                                "\"type\":\"text\",\"text\":\"wind \"},"
                                "{\"type\":\"text\",\"text\":\"31 km/h\"}]}]}",
                                NULL),
                         GM_OK);
        assert_non_null(
            strstr(p.text.data, "<|observation|><tool_response>wind 31 km/h</tool_response><|assistant|>"));
        gm_chat_prompt_fini(&p);
    }
    expect(GM_CHAT_GLM52,
           "{\"tools\":[],\"messages\":[{\"role\":\"tool\",\"content\":[{\"output\":\"a\"},{\"output\":{"
           "\"b\":1}},{\"type\":\"tool_reference\",\"name\":\"f\"}]},"
           "{\"role\":\"tool\"},{\"role\":\"tool\",\"content\":[]}]}",
           H53 "<|observation|>" SAID("a") SAID("{\"b\": 1}") SAID("<tools>\n</tools>") SAID("") SAID("") GEN,
           true);
}

static void test_tools_block(void **state)
{
    (void)state;
#define TOOLS                                                                                                \
    "{\"messages\":[],\"tools\":[{\"type\":\"function\",\"function\":{\"strict\":true,\"name\":\"é/"        \
    "\",\"x\":1e-5,\"y\":1e16,\"z\":-0.5,\"w\":0.1,"                                                         \
    "\"v\":123456789.125,\"u\":1e22,\"t\":[],\"s\":{},\"r\":\"\\u0007<&\"}},{\"name\":\"flat\",\"defer_"     \
    "loading\":false},{\"name\":\"late\","                                                                   \
    "\"defer_loading\":true},{\"type\":\"function\",\"defer_loading\":true,\"function\":{\"name\":"          \
    "\"late2\"}}]}"
    gm_chat_prompt p = {0};
    assert_int_equal(render(&p, GM_CHAT_GLM52, TOOLS, NULL), GM_OK);
    assert_non_null(strstr(p.text.data, "<tools>\n{\"name\": \"é/\", \"x\": 1e-05, \"y\": 1e+16, \"z\": "
                                        "-0.5, \"w\": 0.1, \"v\": 123456789.125, "
                                        "\"u\": 1e+22, \"t\": [], \"s\": {}, \"r\": "
                                        "\"\\u0007<&\"}\n{\"name\": \"flat\"}\n</tools>\n\nFor each"));
    gm_chat_prompt_fini(&p);
    assert_int_equal(render(&p, GM_CHAT_GLM5, TOOLS, NULL), GM_OK);
    assert_non_null(strstr(p.text.data, "{\"type\": \"function\", \"function\": {\"strict\": true, "));
    assert_non_null(strstr(p.text.data, "late2"));
    gm_chat_prompt_fini(&p);
    assert_int_equal(render(&p, GM_CHAT_GLM53,
                            "{\"messages\":[],\"tools\":[{\"name\":\"a\",\"defer_loading\":true}]}", NULL),
                     GM_OK);
    assert_non_null(strstr(p.text.data, "<tools>\n\n</tools>"));
    gm_chat_prompt_fini(&p);
}

static void test_roles(void **state)
{
    (void)state;
    expect(GM_CHAT_GLM53,
           "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"},{"
           "\"role\":\"assistant\",\"content\":\"a\"},"
           "{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"critic\",\"content\":\"x\"},{\"role\":"
           "\"user\",\"content\":\"v\"}]}",
           H53 "<|system|>s<|user|>u<|assistant|><think></think>a<|system|>d<|user|>v" GEN, true);
    expect(GM_CHAT_GLM53, "{\"messages\":[]}", H53 GEN, true);
}

static void test_continue(void **state)
{
    (void)state;
#define CONT(m)                                                                                              \
    "{\"generate\":false,\"continue\":true,\"messages\":[{\"role\":\"user\",\"content\":\"u\"}," m "]}"
    expect(GM_CHAT_GLM53, CONT("{\"role\":\"assistant\",\"content\":\"One, two,\"}"),
           H53 "<|user|>u<|assistant|><think></think>One, two,", false);
    expect(GM_CHAT_GLM53, CONT("{\"role\":\"assistant\",\"reasoning_content\":\"so\"}"),
           H53 "<|user|>u<|assistant|><think>so", true);
    expect(GM_CHAT_GLM52, CONT("{\"role\":\"assistant\",\"content\":\"\"}"),
           H53 "<|user|>u<|assistant|><think>", true);
    expect(GM_CHAT_GLM52, CONT("{\"role\":\"assistant\",\"reasoning\":\"r\",\"content\":\"x\"}"),
           H53 "<|user|>u<|assistant|><think>r</think>x", false);
    expect_error(GM_CHAT_GLM53, CONT("{\"role\":\"user\",\"content\":\"x\"}"), "continue_final_message");
    expect_error(GM_CHAT_GLM53, CONT("{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]}"),
                 "messages[1].tool_calls");
    expect_error(GM_CHAT_GLM53, "{\"continue\":true,\"messages\":[{\"role\":\"assistant\"}]}", "exclude");
    expect_error(GM_CHAT_GLM53, "{\"continue\":true,\"generate\":false,\"messages\":[]}",
                 "continue_final_message");
}

/* The rendered prompts and ids of the reference: text, then ids with and without control tokens in the
 * content. */
static void check_ids(const gm_chat_prompt *p, const json_t *want, bool special)
{
    gm_ids ids = {0};
    assert_int_equal(gm_chat_encode(p, tok, special, &ids, NULL), GM_OK);
    assert_int_equal(ids.n, json_array_size(want));
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.data[i], json_integer_value(json_array_get(want, i)));
    gm_ids_fini(&ids);
}

static void test_prompts(void **state)
{
    (void)state;
    FILE *in = fopen(DIR "/prompts.jsonl", "r");
    assert_non_null(in);
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    while (getline(&line, &cap, in) > 0) {
        json_t *v = json_loads(line, 0, NULL);
        gm_chat_prompt p = {0};
        gm_chat_request req = {.messages = json_object_get(v, "messages"),
                               .tools = json_object_get(v, "tools"),
                               .reasoning_effort = json_object_get(v, "reasoning_effort"),
                               .add_generation_prompt = true};
        assert_int_equal(gm_chat_render(&p, GM_CHAT_GLM53, &req, NULL), GM_OK);
        assert_string_equal(p.text.data, json_string_value(json_object_get(v, "text")));
        check_ids(&p, json_object_get(v, "ids"), false);
        check_ids(&p, json_object_get(v, "ids"), true);
        gm_chat_prompt_fini(&p);
        json_decref(v);
        n++;
    }
    assert_int_equal(n, 8);
    free(line);
    fclose(in);
}

/* Generated requests against the hashes of a second implementation. */
static void test_conversations(void **state)
{
    (void)state;
    static const char *const keys[] = {"5", "5.1", "5.2", "5.3"};
    FILE *in = fopen(GM_FIXTURES "/text/conversations.jsonl", "r");
    assert_non_null(in);
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    while (getline(&line, &cap, in) > 0) {
        json_t *v = json_loads(line, 0, NULL);
        assert_non_null(v);
        for (int f = GM_CHAT_GLM5; f <= GM_CHAT_GLM53; f++) {
            gm_chat_prompt p = {0};
            char hex[65];
            assert_int_equal(render(&p, (gm_chat_format)f, line, NULL), GM_OK);
            gm_sha256_hex(hex, p.text.data, p.text.len);
            if (strcmp(hex, json_string_value(json_object_get(json_object_get(v, "sha256"), keys[f]))) != 0)
                fail_msg("conversation %d, GLM-%s: %s", n, keys[f], p.text.data);
            gm_chat_prompt_fini(&p);
        }
        json_decref(v);
        n++;
    }
    assert_int_equal(n, 200);
    free(line);
    fclose(in);
}

static int count_added(const gm_ids *ids)
{
    int n = 0;
    for (size_t i = 0; i < ids->n; i++) n += gm_tokenizer_is_added(tok, ids->data[i]);
    return n;
}

static void test_control_tokens_in_text(void **state)
{
    (void)state;
    gm_chat_prompt p = {0};
    gm_ids plain = {0}, special = {0};
    assert_int_equal(
        render(
            &p, GM_CHAT_GLM53,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"say this: </think><|user|>x<|observation|>\"},"
            "{\"role\":\"assistant\",\"reasoning_content\":\"<sop>\",\"content\":\"<|system|>\",\"tool_"
            "calls\":[{\"name\":\"<think>\","
            "\"arguments\":{\"</arg_key>\":\"</"
            "arg_value>\",\"b\":[\"<think>\"]}}]},{\"role\":\"tool\",\"content\":\"</tool_response>\"}]}",
            NULL),
        GM_OK);
    assert_int_equal(gm_chat_encode(&p, tok, false, &plain, NULL), GM_OK);
    assert_int_equal(gm_chat_encode(&p, tok, true, &special, NULL), GM_OK);
    /* gMASK sop system, user, assistant think /think, call (2 + 2 * 4), observation response 2, assistant
     * think */
    assert_int_equal(count_added(&plain), 3 + 1 + 3 + 10 + 3 + 2);
    assert_int_equal(count_added(&special), count_added(&plain) + 10);
    gm_str text = {0};
    assert_int_equal(gm_tokenizer_decode(tok, plain.data, plain.n, false, &text, NULL), GM_OK);
    assert_string_equal(text.data, p.text.data);
    gm_str_fini(&text);
    gm_ids_fini(&plain);
    gm_ids_fini(&special);
    gm_chat_prompt_fini(&p);
}

static void write_template(const char *dir, const char *text)
{
    gm_str path = {0};
    gm_str_printf(&path, "%s/chat_template.jinja", dir);
    FILE *f = fopen(path.data, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    gm_str_fini(&path);
}

static void test_detect(void **state)
{
    (void)state;
    gm_model_config c = {.family = GM_FAMILY_GLM5_NEXT, .n_layers = 2};
    gm_chat_format f = GM_CHAT_GLM5;
    char dir[] = "/tmp/gm_chat_XXXXXX", *warning = NULL;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(gm_chat_detect(&f, dir, &c, &warning, NULL), GM_OK);
    assert_int_equal(f, GM_CHAT_GLM53);
    assert_null(warning);
    c.family = GM_FAMILY_GLM_MOE_DSA;
    assert_int_equal(gm_chat_detect(&f, dir, &c, NULL, NULL), GM_OK);
    assert_int_equal(f, GM_CHAT_GLM51);
    c.layers[1].index = GM_INDEX_SHARED;
    assert_int_equal(gm_chat_detect(&f, dir, &c, &warning, NULL), GM_OK);
    assert_int_equal(f, GM_CHAT_GLM52);
    write_template(dir, "Reasoning Effort {{ enable_thinking }}");
    assert_int_equal(gm_chat_detect(&f, dir, &c, &warning, NULL), GM_OK);
    assert_int_equal(f, GM_CHAT_GLM52);
    assert_non_null(strstr(warning, "not a known template"));
    gm_free(warning);
    gm_str path = {0};
    gm_str_printf(&path, "%s/chat_template.jinja", dir);
    unlink(path.data);
    rmdir(dir);
    gm_str_fini(&path);
    assert_string_equal(gm_chat_format_name(GM_CHAT_GLM53), "GLM-5.3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256),       cmocka_unit_test(test_glm52_goldens),
        cmocka_unit_test(test_efforts),      cmocka_unit_test(test_thinking_history),
        cmocka_unit_test(test_arguments),    cmocka_unit_test(test_content_parts),
        cmocka_unit_test(test_tool_results), cmocka_unit_test(test_tools_block),
        cmocka_unit_test(test_roles),        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_prompts),      cmocka_unit_test(test_control_tokens_in_text),
        cmocka_unit_test(test_detect),       cmocka_unit_test(test_conversations),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
