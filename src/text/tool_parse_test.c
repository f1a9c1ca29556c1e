#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "text/chat.h"
#include "text/tool_parse.h"
#include "text/tool_schema.h"

/* How a reply is fed and what is asked of it. */
enum { TOOLS = 1, THINKING = 2, CUT = 4 /* by the length limit */, ONE_CALL = 8, NO_REASONING = 16 };

static json_t *tools;

#define FN(name, properties)                                                                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name                                                  \
    "\",\"parameters\":{\"type\":\"object\",\"properties\":{" properties "}}}}"
static const char tools_json[] =
    "[" FN("now_utc", "") "," FN("mcp__disk-tool__list_all", "") "," FN(
        "read",
        "\"p\":{\"type\":"
        "\"string\"}") "," FN("get",
                              "\"q\":{\"type\":\"string\"}") "," FN("get_weather",
                                                                    "\"city\":{\"type\":\"string\"},\"days\":"
                                                                    "{\"type\":\"integer\"}") "," FN("grep",
                                                                                                     "\"q\":{"
                                                                                                     "\"type"
                                                                                                     "\":"
                                                                                                     "\"strin"
                                                                                                     "g\"}") "," FN("ref",
                                                                                                                    "\"ref\":{\"anyOf\":[{\"type\":\"string\"},{"
                                                                                                                    "\"type\":\"null\"}]},\"tags\":{\"type\":"
                                                                                                                    "\"array\"}") "," FN("typed",
                                                                                                                                         "\"i\":{\"type\":"
                                                                                                                                         "\"integer\"},\"n\":{"
                                                                                                                                         "\"type\":\"number\"},"
                                                                                                                                         "\"b\":{\"type\":"
                                                                                                                                         "\"boolean\"},\"o\":{"
                                                                                                                                         "\"type\":\"object\","
                                                                                                                                         "\"properties\":{\"k\":{"
                                                                                                                                         "\"type\":\"integer\"}}},"
                                                                                                                                         "\"a\":{\"type\":\"array\","
                                                                                                                                         "\"items\":{\"type\":"
                                                                                                                                         "\"boolean\"}},\"in\":{"
                                                                                                                                         "\"type\":[\"integer\","
                                                                                                                                         "\"null\"]},\"e\":{"
                                                                                                                                         "\"enum\":[\"x\",1,null]},"
                                                                                                                                         "\"any\":{}") ","
                                                                                                                                                       "{\"type\":"
                                                                                                                                                       "\"function\""
                                                                                                                                                       ",\"name\":"
                                                                                                                                                       "\"flat\","
                                                                                                                                                       "\"parameters"
                                                                                                                                                       "\":{"
                                                                                                                                                       "\"properties"
                                                                                                                                                       "\":{\"x\":{"
                                                                                                                                                       "\"type\":"
                                                                                                                                                       "\"integer\"}"
                                                                                                                                                       "}}},{"
                                                                                                                                                       "\"name\":"
                                                                                                                                                       "\"bare\"}]";

static int parse_tools(void **state)
{
    (void)state;
    gm_error err = {0};
    if (gm_json_parse(&tools, tools_json, strlen(tools_json), "tools", NULL, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return -1;
    }
    return 0;
}

static int drop_tools(void **state)
{
    (void)state;
    json_decref(tools);
    return 0;
}

/* A whole reply as one line: R(reasoning) C(content) name(arguments). */
typedef struct reader {
    gm_reply *r;
    gm_reply_deltas d;
    gm_str line;
    int kind;
    int32_t index, n_calls;
} reader;

static void take(reader *x)
{
    for (size_t i = 0; i < x->d.n; i++) {
        const gm_reply_delta *d = &x->d.data[i];
        assert_true(d->len > 0 && strlen(d->text) == d->len);
        assert_int_equal(gm_utf8_valid_len(d->text, d->len), d->len);
        if (d->kind == GM_REPLY_CALL) assert_int_equal(d->index, x->n_calls++);
        if (d->kind == GM_REPLY_ARGS) assert_int_equal(d->index, x->n_calls - 1);
        bool open = x->line.len && x->line.data[x->line.len - 1] == ')';
        if (d->kind == GM_REPLY_CALL) {
            gm_str_append(&x->line, d->text, d->len);
            gm_str_puts(&x->line, "()");
        } else {
            bool joins = open && (d->kind == GM_REPLY_ARGS || (x->kind == (int)d->kind));
            if (joins) x->line.data[--x->line.len] = 0;
            else gm_str_puts(&x->line, d->kind == GM_REPLY_REASONING ? "R(" : "C(");
            gm_str_append(&x->line, d->text, d->len);
            gm_str_putc(&x->line, ')');
        }
        x->kind = (int)d->kind;
    }
    gm_reply_deltas_clear(&x->d);
}

static void reader_begin(reader *x, int flags)
{
    gm_reply_params p = {.thinking = flags & THINKING,
                         .reasoning = !(flags & NO_REASONING),
                         .tools = flags & TOOLS ? tools : NULL,
                         .parallel = !(flags & ONE_CALL)};
    *x = (reader){.r = gm_reply_create(&p), .kind = -1};
}

static void reader_end(reader *x, int flags, const char *text, const char *want)
{
    gm_reply_finish(x->r, flags & CUT, &x->d);
    take(x);
    assert_int_equal(gm_reply_calls(x->r), x->n_calls);
    if (strcmp(gm_str_c(&x->line), want) != 0)
        fail_msg("%s\n  got  %s\n  want %s", text, gm_str_c(&x->line), want);
    gm_reply_destroy(x->r);
    gm_reply_deltas_fini(&x->d);
    gm_str_fini(&x->line);
}

static void feed(const char *text, size_t a, size_t b, int flags, const char *want)
{
    reader x;
    size_t len = strlen(text), at[4] = {0, a, b, len};
    reader_begin(&x, flags);
    for (int i = 0; i < 3; i++) {
        gm_reply_push(x.r, text + at[i], at[i + 1] - at[i], &x.d);
        take(&x);
    }
    reader_end(&x, flags, text, want);
}

static void feed_in_steps(const char *text, size_t step, int flags, const char *want)
{
    reader x;
    size_t len = strlen(text);
    reader_begin(&x, flags);
    for (size_t i = 0; i < len; i += step) {
        gm_reply_push(x.r, text + i, len - i < step ? len - i : step, &x.d);
        take(&x);
    }
    reader_end(&x, flags, text, want);
}

/* Whole, cut at every byte into two and three, and in steps of one to seven bytes. */
static void expect(int flags, const char *text, const char *want)
{
    size_t len = strlen(text);
    feed(text, 0, 0, flags, want);
    for (size_t a = 0; a <= len; a++)
        for (size_t b = a; b <= len; b += len > 200 ? 17 : 1) feed(text, a, b, flags, want);
    for (size_t step = 1; step <= 7; step++) feed_in_steps(text, step, flags, want);
}

#define K(k) "<arg_key>" k "</arg_key>"
#define V(v) "<arg_value>" v "</arg_value>"
#define T(...) "<tool_call>" __VA_ARGS__ "</tool_call>"

static void test_zero_arguments(void **state)
{
    (void)state;
    expect(TOOLS, T("now_utc"), "now_utc({})");
    expect(TOOLS, T("mcp__disk-tool__list_all"), "mcp__disk-tool__list_all({})");
    expect(TOOLS, T("\nnow_utc\n"), "now_utc({})");
    expect(TOOLS, T("bare" K("x") V("1")), "bare({\"x\": \"1\"})");
    expect(TOOLS, T("flat" K("x") V("1")), "flat({\"x\": 1})");
}

static void test_call_in_reasoning(void **state)
{
    (void)state;
    const char *text = "need the file " T("read" K("p") V("a.c"));
    expect(TOOLS | THINKING, text, "R(need the file )read({\"p\": \"a.c\"})");
    expect(THINKING, text,
           "R(need the file <tool_call>read<arg_key>p</arg_key><arg_value>a.c</arg_value></tool_call>)");
    expect(TOOLS | THINKING, "use <tool_call> here</think>ok", "R(use <tool_call> here)C(ok)");
    expect(TOOLS | THINKING, "r" T("now_utc") "</think>x", "R(r)now_utc({})C(x)");
    expect(TOOLS | THINKING, "r</think>\n\n" T("now_utc") "\n", "R(r)now_utc({})");
}

static void test_types(void **state)
{
    (void)state;
    expect(TOOLS, T("ref" K("ref") V("K-77") K("tags") V("[\"a\", \"b\"]")),
           "ref({\"ref\": \"K-77\", \"tags\": [\"a\", \"b\"]})");
    expect(TOOLS, T("ref" K("ref") V("null") K("tags") V("[\"a\",\"b\"]")),
           "ref({\"ref\": null, \"tags\": [\"a\", \"b\"]})");
    expect(TOOLS, T("ref" K("ref") V("42") K("tags") V("x")), "ref({\"ref\": \"42\", \"tags\": \"x\"})");
    expect(TOOLS, T("typed" K("i") V("007") K("n") V("3.0") K("b") V("TRUE")),
           "typed({\"i\": 7, \"n\": 3, \"b\": true})");
    expect(TOOLS, T("typed" K("i") V("x1") K("n") V("1e400") K("b") V("0")),
           "typed({\"i\": \"x1\", \"n\": \"1e400\", \"b\": false})");
    expect(TOOLS, T("typed" K("i") V("[1]") K("n") V(" -2.50 ")), "typed({\"i\": [1], \"n\": -2.5})");
    expect(TOOLS, T("typed" K("o") V("{\"k\":\"5\",\"z\":[{}]}") K("a") V("[\"true\",0]")),
           "typed({\"o\": {\"k\": 5, \"z\": [{}]}, \"a\": [true, 0]})");
    expect(TOOLS, T("typed" K("in") V("null") K("e") V("1") K("any") V("{\"a\":1}")),
           "typed({\"in\": null, \"e\": 1, \"any\": \"{\\\"a\\\":1}\"})");
    expect(TOOLS, T("typed" K("i") V("123456789012345678901234567890")),
           "typed({\"i\": 123456789012345678901234567890})");
    expect(TOOLS, T("typed" K("e") V("x") K("other") V("42")), "typed({\"e\": \"x\", \"other\": \"42\"})");
}

static void test_names(void **state)
{
    (void)state;
    expect(TOOLS, T("get_weather" K("city") V("北京") K("days") V("2")),
           "get_weather({\"city\": \"北京\", \"days\": 2})");
    expect(TOOLS, T("get" K("q") V("x")), "get({\"q\": \"x\"})");
    expect(TOOLS, T("get_"), "C(<tool_call>get_</tool_call>)");
    expect(TOOLS, T("get_weatherx" K("a") V("b")),
           "C(<tool_call>get_weatherx<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>)");
    expect(TOOLS, "a " T("nobody" K("a") V("b")) " z",
           "C(a <tool_call>nobody<arg_key>a</arg_key><arg_value>b</arg_value></tool_call> z)");
    expect(TOOLS, "the <tool_call> tag, see", "C(the <tool_call> tag, see)");
    expect(TOOLS, "<tool_call>get a cup of tea", "C(<tool_call>get a cup of tea)");
    expect(TOOLS, "<tool_call>" T("now_utc"), "C(<tool_call>)now_utc({})");
    expect(0, T("now_utc"), "C(<tool_call>now_utc</tool_call>)");
}

/* The older form: line feeds behind the name and between the tags. */
static void test_older_form(void **state)
{
    (void)state;
    expect(TOOLS,
           "ok\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</"
           "arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n"
           "<tool_call>now_utc\n</tool_call>",
           "C(ok)get_weather({\"city\": \"Paris\", \"days\": 2})now_utc({})");
}

static void test_several_calls(void **state)
{
    (void)state;
    expect(TOOLS, T("get" K("q") V("1")) T("get" K("q") V("2")) "\n \n" T("get" K("q") V("3")),
           "get({\"q\": \"1\"})get({\"q\": \"2\"})get({\"q\": \"3\"})");
    expect(TOOLS, T("get") T("read") T("get"), "get({})read({})get({})");
    expect(TOOLS | ONE_CALL, "a" T("get" K("q") V("1")) T("read" K("p") V("2") K("z") V("3")),
           "C(a)get({\"q\": \"1\"})");
    expect(TOOLS, T("get") " and " T("read") " end \n", "get({})C( and)read({})C( end \n)");
    expect(TOOLS, "<tool_call>get" K("q") V("1") "<tool_call>read</tool_call>",
           "get({\"q\": \"1</arg_value><tool_call>read</tool_call>\"})");
    expect(TOOLS, "<tool_call>get" K("q") V("1") K("r") T("now_utc"), "get({\"q\": \"1\"})now_utc({})");
}

static void test_values(void **state)
{
    (void)state;
    expect(TOOLS, T("read" K("p") V("if (a<b && c>d) {}")), "read({\"p\": \"if (a<b && c>d) {}\"})");
    expect(TOOLS, T("read" K("p") V("explore")), "read({\"p\": \"explore\"})");
    expect(TOOLS, T("read" K("p") V("C:\\work\\proj\\docs\\w.js")),
           "read({\"p\": \"C:\\\\work\\\\proj\\\\docs\\\\w.js\"})");
    expect(TOOLS, T("read" K("p") V("\n [a]\n; \"c\"\tx=1\x01\n")),
           "read({\"p\": \"\\n [a]\\n; \\\"c\\\"\\tx=1\\u0001\\n\"})");
    expect(TOOLS, T("read" K("p") V("大阪🚆")), "read({\"p\": \"大阪🚆\"})");
    expect(TOOLS, T("read" K("p") V("a</arg_value> b</tool_call><think>c</think>")),
           "read({\"p\": \"a</arg_value> b</tool_call><think>c</think>\"})");
    expect(TOOLS, T("read" K("p") "<arg_value>x</arg_value></arg_value>"),
           "read({\"p\": \"x</arg_value>\"})");
    expect(TOOLS, T("read" K("p") V("")), "read({\"p\": \"\"})");
    expect(TOOLS, T("typed" K("o") V("{\"k\": {\"deep\": [1, {\"x\": null}]}}")),
           "typed({\"o\": {\"k\": {\"deep\": [1, {\"x\": null}]}}})");
    expect(TOOLS, T("read" K("p") V("1") K("p") V("2") K("z") V("3")), "read({\"p\": \"1\", \"z\": \"3\"})");
}

static void test_recoveries(void **state)
{
    (void)state;
    expect(TOOLS, "<tool_call>grepq</arg_key><arg_value>x</arg_value></tool_call>", "grep({\"q\": \"x\"})");
    expect(TOOLS, "<tool_call>grep\nq</arg_key><arg_value>x</arg_value></tool_call>", "grep({\"q\": \"x\"})");
    expect(TOOLS, "<tool_call>get_weather</arg_key><arg_value>x</arg_value></tool_call>",
           "get({\"_weather\": \"x\"})");
    expect(TOOLS, "<tool_call>huh</arg_key>", "C(<tool_call>huh</arg_key>)");
    expect(TOOLS, T("now_utc") "</tool_call>\n</tool_call>", "now_utc({})");
    expect(TOOLS, "a lone </arg_value> and </tool_call> here",
           "C(a lone </arg_value> and </tool_call> here)");
    expect(TOOLS, T("get<arg_key>q<arg_value>x</arg_value>"), "get({\"q\": \"x\"})");
    expect(TOOLS, T("get" K("lost") K("q") V("x")), "get({\"q\": \"x\"})");
    expect(TOOLS, T("get" K("lost") "junk" V("y") K("q") V("x")), "get({\"q\": \"x\"})");
    expect(TOOLS, T("get" V("y")), "C(<tool_call>get<arg_value>y</arg_value></tool_call>)");
    expect(TOOLS, T("get" K(" q ") " \n " V("x") "\n"), "get({\"q\": \"x\"})");
    expect(TOOLS | THINKING, "a<think>b</think>c</think>d<think>e</think>f", "R(ab)C(cd)R(e)C(f)");
}

static void test_no_call_no_loss(void **state)
{
    (void)state;
    expect(TOOLS, T(""), "C(<tool_call></tool_call>)");
    expect(TOOLS | CUT, "<tool_call>", "C(<tool_call>)");
    expect(TOOLS | CUT, "hi \n<tool_call>get_we", "C(hi \n<tool_call>get_we)");
    expect(TOOLS | CUT, "hi <tool_c", "C(hi <tool_c)");
    expect(TOOLS, "value <tool ", "C(value <tool )");
    expect(TOOLS, "", "");
    expect(TOOLS, " \n ", "C( \n )");
    expect(TOOLS, "x \n ", "C(x \n )");
}

static void test_truncation(void **state)
{
    (void)state;
    expect(TOOLS | CUT, "<tool_call>now_utc", "C(<tool_call>now_utc)");
    expect(TOOLS, "<tool_call>now_utc", "now_utc({})");
    expect(TOOLS | CUT, "<tool_call>get<arg_key>", "get()");
    expect(TOOLS | CUT, "<tool_call>get<arg_key>q</arg_key><arg_value>ab</arg_v", "get({\"q\": \"ab)");
    expect(TOOLS | CUT, "<tool_call>get_weather" K("days") "<arg_value>1", "get_weather()");
    expect(TOOLS | CUT, "<tool_call>get" K("q") V("ab"), "get({\"q\": \"ab)");
    expect(TOOLS, "<tool_call>get" K("q") V("ab"), "get({\"q\": \"ab\"})");
    expect(TOOLS, "<tool_call>get" K("q") "<arg_value>ab", "get({\"q\": \"ab\"})");
    expect(TOOLS, "<tool_call>get_weather" K("days") "<arg_value>12", "get_weather({\"days\": 12})");
    expect(TOOLS, "<tool_call>get" K("q"), "get({})");
}

static void test_reasoning(void **state)
{
    (void)state;
    for (int with = 0; with <= TOOLS; with++) {
        expect(THINKING | with, "Paris.", "R(Paris.)"); /* ended by itself or cut: all is reasoning */
        expect(THINKING | CUT | with, "Paris.", "R(Paris.)");
        expect(THINKING | with, "\nso \n</think>Paris.", "R(\nso \n)C(Paris.)");
        expect(THINKING | with, "a < b </thin", "R(a < b </thin)");
        expect(with, "say <think> or </think>", "C(say <think> or </think>)");
        expect(THINKING | NO_REASONING | with, "a</think>b", "C(a</think>b)");
    }
    gm_reply *r = gm_reply_create(&(gm_reply_params){.thinking = true, .reasoning = true, .parallel = true});
    gm_reply_deltas d = {0};
    assert_true(gm_reply_in_reasoning(r));
    gm_reply_push(r, "a</think>", 9, &d);
    assert_false(gm_reply_in_reasoning(r));
    gm_reply_destroy(r);
    gm_reply_destroy(NULL);
    gm_reply_deltas_fini(&d);
}

/* A long argument with sections, comments and blank lines comes back unchanged in the next turn's prompt. */
static void test_round_trip(void **state)
{
    (void)state;
    gm_str ini = {0}, reply = {0}, args = {0}, want = {0};
    for (int i = 0; i < 13; i++) gm_str_printf(&ini, "[part %d]\n; \"note\" <b>\\\nkey = %d\t\n", i, i);
    gm_str_printf(&reply, "<tool_call>read" K("p") "<arg_value>%s</arg_value></tool_call>", ini.data);
    gm_reply *r = gm_reply_create(&(gm_reply_params){.tools = tools, .reasoning = true, .parallel = true});
    gm_reply_deltas d = {0};
    gm_reply_push(r, reply.data, reply.len, &d);
    gm_reply_finish(r, false, &d);
    for (size_t i = 0; i < d.n; i++)
        if (d.data[i].kind == GM_REPLY_ARGS) gm_str_append(&args, d.data[i].text, d.data[i].len);
    json_t *messages = json_pack("[{s:s,s:[{s:{s:s,s:s}}]}]", "role", "assistant", "tool_calls", "function",
                                 "name", "read", "arguments", args.data);
    gm_chat_prompt p = {0};
    gm_chat_request req = {.messages = messages};
    assert_int_equal(gm_chat_render(&p, GM_CHAT_GLM53, &req, NULL), GM_OK);
    gm_str_printf(&want, "<think></think>%s", reply.data);
    assert_non_null(strstr(p.text.data, want.data));
    gm_chat_prompt_fini(&p);
    json_decref(messages);
    gm_reply_destroy(r);
    gm_reply_deltas_fini(&d);
    gm_str *const strings[] = {&ini, &reply, &args, &want};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) gm_str_fini(strings[i]);
}

/* The first delta of a call is its name, whole; a value goes out before it is closed. */
static void test_streaming(void **state)
{
    (void)state;
    reader x;
    reader_begin(&x, TOOLS);
    static const struct {
        const char *push, *so_far;
    } steps[] = {{"<tool_call>get", ""},
                 {"_weather", ""},
                 {"<arg_key>", "get_weather()"},
                 {"city", "get_weather()"},
                 {"</arg_key>", "get_weather()"},
                 {"<arg_value>", "get_weather({\"city\": \")"},
                 {"Pa\"", "get_weather({\"city\": \"Pa\\\")"},
                 {"ris<", "get_weather({\"city\": \"Pa\\\"ris)"},
                 {"/arg_value>", "get_weather({\"city\": \"Pa\\\"ris)"},
                 {"</tool_call>", "get_weather({\"city\": \"Pa\\\"ris\"})"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        gm_reply_push(x.r, steps[i].push, strlen(steps[i].push), &x.d);
        take(&x);
        assert_string_equal(gm_str_c(&x.line), steps[i].so_far);
    }
    reader_end(&x, 0, "steps", "get_weather({\"city\": \"Pa\\\"ris\"})");
}

static void time_filled(const char *begin, const char *unit, size_t len)
{
    gm_str s = {0};
    gm_str_puts(&s, begin);
    while (s.len < len) gm_str_puts(&s, unit);
    gm_reply *r = gm_reply_create(
        &(gm_reply_params){.thinking = true, .reasoning = true, .parallel = true, .tools = tools});
    gm_reply_deltas d = {0};
    clock_t from = clock();
    for (size_t i = 0; i < s.len; i += 5) gm_reply_push(r, s.data + i, s.len - i < 5 ? s.len - i : 5, &d);
    gm_reply_finish(r, true, &d);
    double took = (double)(clock() - from) / CLOCKS_PER_SEC;
    if (took > 5) fail_msg("%zu bytes of \"%s\" took %.1f s", s.len, unit, took);
    gm_reply_destroy(r);
    gm_reply_deltas_fini(&d);
    gm_str_fini(&s);
}

static void test_long_replies(void **state)
{
    (void)state;
    static const char *const units[] = {"<",
                                        "<tool_call>",
                                        " ",
                                        "</arg_value>",
                                        "<tool_call>get",
                                        "<tool_call>   ",
                                        "</arg_value> ",
                                        "\"\\",
                                        "<arg_key>k</arg_key><arg_value>v</arg_value>",
                                        "<arg_key>",
                                        "\xff"};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        time_filled("", units[i], 1 << 18);
        time_filled("</think>", units[i], 1 << 18);
        time_filled("<tool_call>get<arg_key>q</arg_key><arg_value>", units[i], 1 << 18);
        time_filled("<tool_call>typed<arg_key>o</arg_key><arg_value>", units[i], 1 << 18);
        time_filled("<tool_call>get<arg_key>", units[i], 1 << 18);
    }
}

static void check_types(const char *schema, unsigned want)
{
    json_t *root = json_loads(schema, 0, NULL);
    assert_non_null(root);
    assert_int_equal(gm_schema_types(root, root), want);
    json_decref(root);
}

static void test_schema_types(void **state)
{
    (void)state;
    assert_int_equal(gm_schema_types(NULL, NULL), GM_TYPE_STRING);
    check_types("{}", GM_TYPE_STRING);
    check_types("{\"type\":\"int32\"}", GM_TYPE_INTEGER);
    check_types("{\"type\":\"VARCHAR\"}", GM_TYPE_STRING);
    check_types("{\"type\":\"mystery\"}", GM_TYPE_STRING);
    check_types("{\"type\":[\"string\",\"null\",5]}", GM_TYPE_STRING | GM_TYPE_NULL);
    check_types("{\"enum\":[1,\"a\",true,1.5]}",
                GM_TYPE_INTEGER | GM_TYPE_STRING | GM_TYPE_BOOLEAN | GM_TYPE_NUMBER);
    check_types("{\"oneOf\":[{\"type\":\"dict\"},{\"allOf\":[{\"type\":\"list\"}]}]}",
                GM_TYPE_OBJECT | GM_TYPE_ARRAY);
    check_types("{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"type\":\"double\"}}}", GM_TYPE_NUMBER);
    check_types("{\"$ref\":\"#\"}", GM_TYPE_STRING);
    check_types("{\"$ref\":\"http://x\"}", GM_TYPE_STRING);
    check_types("{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}",
                GM_TYPE_STRING); /* without an end */
    check_types("{\"type\":\"string\",\"nullable\":true}", GM_TYPE_STRING | GM_TYPE_NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zero_arguments),  cmocka_unit_test(test_call_in_reasoning),
        cmocka_unit_test(test_types),           cmocka_unit_test(test_names),
        cmocka_unit_test(test_older_form),      cmocka_unit_test(test_several_calls),
        cmocka_unit_test(test_values),          cmocka_unit_test(test_recoveries),
        cmocka_unit_test(test_no_call_no_loss), cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_reasoning),       cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_long_replies),    cmocka_unit_test(test_schema_types),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, parse_tools, drop_tools);
}
