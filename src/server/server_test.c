/* The server over real sockets, on a scripted backend: what a model says is a fixed text, so that every path from tokens
 * to bytes can be held to an expected answer. */
/* clang-format off */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/server.h"

enum { VOCAB = 2560, END = 2507, PAGE = 64, PAGES = 512, SLOTS = 8 };

static gm_tokenizer *tokenizer;

typedef struct world {
    gm_ids script;
    gm_scripted *scripted;
    gm_backend backend;
    gm_engine *engine;
    gm_server *server;
    int port;
} world;

typedef struct options {
    const char *says; /* what the model answers, as text with tags */
    bool bytes;       /* each byte is a token of its own, as far as the vocabulary has it */
    int64_t step_us, fail_after;
    double health_s;
    bool no_tools;
} options;

/* One token for each byte, so that every character and tag is cut everywhere. */
static void encode_bytes(gm_ids *ids, const char *text)
{
    for (const char *p = text; *p; p++) {
        for (int32_t id = 0; id < gm_tokenizer_size(tokenizer); id++) {
            size_t n;
            const char *b = gm_tokenizer_bytes(tokenizer, id, &n);
            if (b && n == 1 && *b == *p && !gm_tokenizer_is_added(tokenizer, id)) {
                gm_ids_push(ids, id);
                break;
            }
        }
    }
}

static void world_init(world *w, const options *o)
{
    gm_error err = {0};
    memset(w, 0, sizeof *w);
    if (o->bytes) encode_bytes(&w->script, o->says);
    else assert_int_equal(gm_tokenizer_encode(tokenizer, o->says, strlen(o->says), GM_ADDED_MATCH, &w->script, &err), GM_OK);
    gm_script s = {w->script.data, (int32_t)w->script.n};
    w->scripted = gm_scripted_create(&s, 1, VOCAB, END, PAGE, PAGES, SLOTS);
    gm_scripted_set_step_us(w->scripted, o->step_us);
    if (o->fail_after) gm_scripted_fail_after(w->scripted, o->fail_after);
    w->backend = gm_scripted_backend(w->scripted);
    gm_engine_params ep = {.eos = {END},
                           .n_eos = 1,
                           .vocab_size = VOCAB,
                           .vocab_used = VOCAB,
                           .model_len_max = 4096,
                           .batch_tokens_max = 512,
                           .seqs_max = SLOTS,
                           .chunked_prefill = true,
                           .reserve_full_prompt = true,
                           .queued_reqs_max = -1,
                           .queued_tokens_max = -1,
                           .page_tokens = PAGE,
                           .n_pages = PAGES,
                           .n_slots = SLOTS};
    assert_int_equal(gm_engine_create(&w->engine, &ep, &w->backend, &err), GM_OK);
    int fd = -1;
    assert_int_equal(gm_listen_tcp(&fd, "127.0.0.1", 0, &w->port, &err), GM_OK);
    static const char *const names[] = {"m"};
    static const int32_t eos[] = {END};
    gm_server_params p = {.listen_fd = fd,
                          .engine = w->engine,
                          .tokenizer = tokenizer,
                          .chat = GM_CHAT_GLM53,
                          .names = names,
                          .n_names = 1,
                          .rules = {.vocab_size = VOCAB,
                                    .model_len = 4096,
                                    .max_logprobs = 20,
                                    .has_tokenizer = true,
                                    .auto_tools = !o->no_tools,
                                    .stream_interval = 1,
                                    .defaults = GM_API_DEFAULTS},
                          .eos = eos,
                          .n_eos = 1,
                          .reasoning_parser = true,
                          .tool_parser = !o->no_tools,
                          .health_step_s = o->health_s,
                          .n_pages = PAGES,
                          .page_tokens = PAGE};
    assert_int_equal(gm_server_create(&w->server, &p, &err), GM_OK);
}

static void world_fini(world *w)
{
    gm_engine_drain(w->engine, 0);
    gm_server_destroy(w->server);
    gm_engine_destroy(w->engine);
    gm_scripted_destroy(w->scripted);
    gm_ids_fini(&w->script);
}

/* ---- a small client ---- */

static int dial(const world *w)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)w->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static int ask(const world *w, const char *method, const char *path, const char *body)
{
    gm_str s = {0};
    int fd = dial(w);
    gm_str_printf(&s, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                  method, path, strlen(body), body);
    assert_int_equal(send(fd, s.data, s.len, MSG_NOSIGNAL), (ssize_t)s.len);
    gm_str_fini(&s);
    return fd;
}

/* The status; *body is without its chunk framing. */
static int read_answer(int fd, gm_str *body)
{
    gm_str raw = {0};
    char buf[65536];
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;) gm_str_append(&raw, buf, (size_t)n);
    close(fd);
    int status = 0;
    if (sscanf(gm_str_c(&raw), "HTTP/1.1 %d", &status) != 1) status = 0;
    const char *p = strstr(gm_str_c(&raw), "\r\n\r\n");
    bool chunked = strcasestr(gm_str_c(&raw), "transfer-encoding: chunked") != NULL;
    gm_str_clear(body);
    if (p && !chunked) gm_str_puts(body, p + 4);
    for (p = p ? p + 4 : NULL; p && chunked;) {
        char *end;
        unsigned long n = strtoul(p, &end, 16);
        if (!n || *end != '\r') break;
        gm_str_append(body, end + 2, n);
        p = end + 2 + n + 2;
    }
    gm_str_fini(&raw);
    return status;
}

static int post(const world *w, const char *path, const char *body, gm_str *out)
{
    return read_answer(ask(w, "POST", path, body), out);
}

typedef struct told {
    gm_str reasoning, content;
    gm_str calls; /* name(arguments) of each, in order */
    char finish[32];
    int n_calls, n_errors, n_done, n_finish, completion;
} told;

static void told_fini(told *t)
{
    gm_str_fini(&t->reasoning);
    gm_str_fini(&t->content);
    gm_str_fini(&t->calls);
}

static void take_whole(told *t, const char *text)
{
    json_t *v = NULL;
    size_t i;
    json_t *c;
    assert_int_equal(gm_json_parse(&v, text, strlen(text), "answer", NULL, NULL), GM_OK);
    json_t *choice = json_array_get(json_object_get(v, "choices"), 0), *m = json_object_get(choice, "message");
    const char *s = json_string_value(json_object_get(m, "reasoning"));
    if (s) gm_str_puts(&t->reasoning, s);
    s = json_string_value(json_object_get(m, "content"));
    if (s) gm_str_puts(&t->content, s);
    json_array_foreach(json_object_get(m, "tool_calls"), i, c) {
        json_t *f = json_object_get(c, "function");
        gm_str_printf(&t->calls, "%s(%s)", json_string_value(json_object_get(f, "name")),
                      json_string_value(json_object_get(f, "arguments")));
        t->n_calls++;
    }
    snprintf(t->finish, sizeof t->finish, "%s", json_string_value(json_object_get(choice, "finish_reason")));
    t->completion = (int)json_integer_value(json_object_get(json_object_get(v, "usage"), "completion_tokens"));
    json_decref(v);
}

/* Every tool delta: the first of a call has id, type and name, later ones only arguments; indexes count up. */
static void take_call_delta(told *t, const json_t *c, int *open)
{
    int index = (int)json_integer_value(json_object_get(c, "index"));
    const json_t *f = json_object_get(c, "function");
    const char *name = json_string_value(json_object_get(f, "name")), *args = json_string_value(json_object_get(f, "arguments"));
    if (name) {
        assert_int_equal(index, t->n_calls);
        assert_non_null(json_string_value(json_object_get(c, "id")));
        assert_string_equal(json_string_value(json_object_get(c, "type")), "function");
        if (*open) gm_str_putc(&t->calls, ')');
        gm_str_printf(&t->calls, "%s(", name);
        *open = 1;
        t->n_calls++;
    } else {
        assert_int_equal(index, t->n_calls - 1);
        assert_null(json_object_get(c, "id"));
        gm_str_puts(&t->calls, args);
    }
}

static void take_stream(told *t, char *text)
{
    int open = 0;
    for (char *p = text, *end; (end = strstr(p, "\n\n")); p = end + 2) {
        *end = 0;
        if (strncmp(p, "data: ", 6)) continue;
        if (!strcmp(p + 6, "[DONE]")) {
            t->n_done++;
            continue;
        }
        assert_int_equal(t->n_done, 0);
        json_t *v = NULL;
        size_t i;
        json_t *c;
        assert_int_equal(gm_json_parse(&v, p + 6, strlen(p + 6), "chunk", NULL, NULL), GM_OK); /* valid UTF-8, valid JSON */
        if (json_object_get(v, "error")) t->n_errors++;
        json_t *u = json_object_get(v, "usage");
        if (u) t->completion = (int)json_integer_value(json_object_get(u, "completion_tokens"));
        json_t *choice = json_array_get(json_object_get(v, "choices"), 0), *d = json_object_get(choice, "delta");
        const char *s = json_string_value(json_object_get(d, "reasoning"));
        if (s) gm_str_puts(&t->reasoning, s);
        s = json_string_value(json_object_get(d, "content"));
        if (s) gm_str_puts(&t->content, s);
        json_array_foreach(json_object_get(d, "tool_calls"), i, c) take_call_delta(t, c, &open);
        s = json_string_value(json_object_get(choice, "finish_reason"));
        if (s) {
            snprintf(t->finish, sizeof t->finish, "%s", s);
            t->n_finish++;
        }
        json_decref(v);
    }
    if (open) gm_str_putc(&t->calls, ')');
}

static void converse(const world *w, const char *extra, bool stream, told *t)
{
    gm_str body = {0}, answer = {0};
    memset(t, 0, sizeof *t);
    gm_str_printf(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"go\"}],\"temperature\":0%s%s%s}", *extra ? "," : "", extra,
                  stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
    int status = post(w, "/v1/chat/completions", gm_str_c(&body), &answer);
    if (status != 200) print_error("%d %s\n", status, gm_str_c(&answer));
    assert_int_equal(status, 200);
    if (stream) take_stream(t, answer.data);
    else take_whole(t, gm_str_c(&answer));
    gm_str_fini(&body);
    gm_str_fini(&answer);
}

#define TOOLS                                                                                                          \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"now_utc\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}},"  \
    "{\"type\":\"function\",\"function\":{\"name\":\"read\",\"parameters\":{\"type\":\"object\",\"properties\":{\"p\":{\"type\":"     \
    "\"string\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"mcp__disk-tool__list_all\",\"parameters\":{\"type\":\"object\"," \
    "\"properties\":{\"ref\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"tags\":{\"type\":\"array\"}}}}}]"

typedef struct scene {
    const char *says, *extra, *reasoning, *content, *calls, *finish;
} scene;

static const scene scenes[] = {
    {"think</think>Hello there.", "", "think", "Hello there.", "", "stop"},
    {"x</think><tool_call>now_utc</tool_call>", TOOLS, "x", "", "now_utc({})", "tool_calls"},
    {"x</think><tool_call>mcp__disk-tool__list_all</tool_call>", TOOLS, "x", "", "mcp__disk-tool__list_all({})", "tool_calls"},
    {"need the file<tool_call>read<arg_key>p</arg_key><arg_value>a.c</arg_value></tool_call>", TOOLS, "need the file", "",
     "read({\"p\": \"a.c\"})", "tool_calls"},
    {"x</think><tool_call>mcp__disk-tool__list_all<arg_key>ref</arg_key><arg_value>K-77</arg_value><arg_key>tags</arg_key><arg_value>"
     "[\"a\", \"b\"]</arg_value></tool_call>",
     TOOLS, "x", "", "mcp__disk-tool__list_all({\"ref\": \"K-77\", \"tags\": [\"a\", \"b\"]})", "tool_calls"},
    {"x</think><tool_call>read<arg_key>p</arg_key><arg_value>1</arg_value></tool_call><tool_call>now_utc</tool_call><tool_call>read"
     "<arg_key>p</arg_key><arg_value>2</arg_value></tool_call>",
     TOOLS, "x", "", "read({\"p\": \"1\"})now_utc({})read({\"p\": \"2\"})", "tool_calls"},
    {"x</think><tool_call>read<arg_key>p</arg_key><arg_value>\xe5\xa4\xa7\xe9\x98\xaa\xf0\x9f\x9a\x86</arg_value></tool_call>", TOOLS, "x", "",
     "read({\"p\": \"\xe5\xa4\xa7\xe9\x98\xaa\xf0\x9f\x9a\x86\"})", "tool_calls"},
    {"Paris.", "", "Paris.", "", "", "stop"},
    {"Paris.</think>value <tool END more", "\"stop\":[\"END\"]," TOOLS, "Paris.", "value <tool ", "", "stop"},
    {"a</think>nopqrstuvw", "\"stop\":\"qrstuv\"", "a", "nop", "", "stop"},
    {"a</think>nopqrstuXw", "\"stop\":\"qrstuv\"", "a", "nopqrstuXw", "", "stop"},
    {"a</think>nopqrstuvw", "\"stop\":[\"qrstuvw\",\"rst\"],\"include_stop_str_in_output\":true", "a", "nopqrst", "", "stop"},
    {"a</think>\xe5\xa4\xa7\xe9\x98\xaa!", "\"stop\":\"\xe9\x98\xaa\"", "a", "\xe5\xa4\xa7", "", "stop"},
};

/* Streamed and whole give the same, whether tokens are as the tokenizer makes them or single bytes. */
static void test_scenes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        for (int bytes = 0; bytes < 2; bytes++) {
            const scene *s = &scenes[i];
            world w;
            int completion = -1;
            world_init(&w, &(options){.says = s->says, .bytes = bytes});
            for (int stream = 0; stream < 2; stream++) {
                told t;
                converse(&w, s->extra, stream, &t);
                assert_string_equal(gm_str_c(&t.reasoning), s->reasoning);
                assert_string_equal(gm_str_c(&t.content), s->content);
                assert_string_equal(gm_str_c(&t.calls), s->calls);
                assert_string_equal(t.finish, s->finish);
                if (stream) assert_true(t.n_done == 1 && t.n_finish == 1 && !t.n_errors);
                if (stream) assert_int_equal(t.completion, completion);
                completion = t.completion;
                told_fini(&t);
            }
            world_fini(&w);
        }
    }
}

/* Cut by max_tokens inside a call, or an empty call: no finish "tool_calls" without a call, and the text stays. */
static void test_calls_that_are_none(void **state)
{
    world w;
    told t;
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        world_init(&w, &(options){.says = "x</think><tool_call></tool_call>"});
        converse(&w, TOOLS, stream, &t);
        assert_string_equal(t.finish, "stop");
        assert_int_equal(t.n_calls, 0);
        told_fini(&t);
        world_fini(&w);
        world_init(&w, &(options){.says = "x</think><tool_call>read<arg_key>p</arg_key><arg_value>abc def ghi</arg_value></tool_call>"});
        converse(&w, "\"max_tokens\":8," TOOLS, stream, &t);
        assert_string_equal(t.finish, "length");
        told_fini(&t);
        world_fini(&w);
    }
}

static void test_failing_step(void **state)
{
    world w;
    told t;
    gm_str a = {0};
    (void)state;
    world_init(&w, &(options){.says = "one two three four five six seven eight", .fail_after = 4});
    converse(&w, "", true, &t);
    assert_true(t.n_errors == 1 && t.n_done == 1 && t.n_finish == 0);
    told_fini(&t);
    world_fini(&w);
    world_init(&w, &(options){.says = "one two three four five six seven eight", .fail_after = 4});
    assert_int_equal(post(&w, "/v1/completions", "{\"prompt\":\"a\",\"temperature\":0}", &a), 500);
    assert_non_null(strstr(gm_str_c(&a), "\"type\":\"InternalServerError\",\"param\":null,\"code\":500}"));
    world_fini(&w);
    gm_str_fini(&a);
}

static gm_engine_stats stats_of(const world *w)
{
    gm_engine_stats s;
    gm_engine_stats_get(w->engine, &s);
    return s;
}

static bool rests(const world *w, double seconds)
{
    for (int64_t end = gm_now_us() + (int64_t)(seconds * 1e6); gm_now_us() < end; usleep(2000)) {
        gm_engine_stats s = stats_of(w);
        if (!s.running && !s.waiting && !s.pages_used && !s.slots_used) return true;
    }
    return false;
}

/* More requests than slots, all clients leave: everything is free again within a second. */
static void test_clients_leave(void **state)
{
    world w;
    int fds[24];
    (void)state;
    world_init(&w, &(options){.says = "go on", .step_us = 3000});
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 24; i++)
            fds[i] = ask(&w, "POST", "/v1/completions",
                         i & 1 ? "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true}"
                               : "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true}");
        for (int64_t end = gm_now_us() + 5000000; stats_of(&w).running + stats_of(&w).waiting < 24 && gm_now_us() < end;) usleep(1000);
        assert_int_equal(stats_of(&w).running + stats_of(&w).waiting, 24);
        for (int i = 0; i < 24; i++) close(fds[i]);
        assert_true(rests(&w, 1.0));
    }
    world_fini(&w);
}

static void test_health_of_a_hung_engine(void **state)
{
    world w;
    gm_str a = {0};
    (void)state;
    world_init(&w, &(options){.says = "hello", .step_us = 1500000, .health_s = 0.3});
    assert_int_equal(read_answer(ask(&w, "GET", "/health", ""), &a), 200);
    int fd = ask(&w, "POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}");
    usleep(900000);
    assert_int_equal(read_answer(ask(&w, "GET", "/health", ""), &a), 503);
    assert_int_equal(read_answer(fd, &a), 200);
    usleep(500000);
    assert_int_equal(read_answer(ask(&w, "GET", "/health", ""), &a), 200);
    world_fini(&w);
    gm_str_fini(&a);
}

/* Two requests on one connection, pipelined; HEAD; a second server on the same port. */
static void test_connections(void **state)
{
    world w;
    gm_str a = {0};
    gm_error err = {0};
    (void)state;
    world_init(&w, &(options){.says = "hello"});
    int fd = dial(&w);
    static const char two[] = "GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /load HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert_int_equal(send(fd, two, sizeof two - 1, 0), (ssize_t)sizeof two - 1);
    assert_int_equal(read_answer(fd, &a), 200);
    assert_non_null(strstr(gm_str_c(&a), "server_load"));
    assert_int_equal(read_answer(ask(&w, "HEAD", "/health", ""), &a), 200);
    int other = -1;
    assert_int_equal(gm_listen_tcp(&other, "127.0.0.1", w.port, NULL, &err), GM_EIO);
    world_fini(&w);
    gm_str_fini(&a);
}

int main(void)
{
    gm_error err = {0};
    gm_log_set_level(GM_LOG_ERROR);
    if (gm_tokenizer_open(&tokenizer, GM_MODELS "/tiny-glm-5.3-flash", &err)) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scenes),        cmocka_unit_test(test_calls_that_are_none), cmocka_unit_test(test_failing_step),
        cmocka_unit_test(test_clients_leave), cmocka_unit_test(test_health_of_a_hung_engine),
        cmocka_unit_test(test_connections)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    gm_tokenizer_close(tokenizer);
    return rc;
}
