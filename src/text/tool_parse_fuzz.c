/* A reply in one piece and in drawn pieces must give the same deltas once joined; closed calls are JSON
 * objects; no delta cuts a character. The input's first bytes choose the flags and the cuts, and bytes 1..31
 * stand for words of the grammar, which a fuzzer finds slowly by itself. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "text/text_internal.h"
#include "text/tool_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const words[] = {"<think>",
                                    "</think>",
                                    "<tool_call>",
                                    "</tool_call>",
                                    "<arg_key>",
                                    "</arg_key>",
                                    "<arg_value>",
                                    "</arg_value>",
                                    "get",
                                    "get_weather",
                                    "typed",
                                    "now",
                                    "\n",
                                    " ",
                                    "i",
                                    "o",
                                    "a",
                                    "s",
                                    "null",
                                    "{\"k\":",
                                    "}",
                                    "[\"1\",",
                                    "]",
                                    "12",
                                    "\xe5\xa4\xa7",
                                    "\xf0\x9f",
                                    "\"",
                                    "\\"};
static const char tools_json[] =
    "[{\"function\":{\"name\":\"get\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{"
    "\"type\":[\"integer\",\"null\"]}}}}},"
    "{\"name\":\"get_weather\"},{\"name\":\"now\",\"parameters\":{}},{\"function\":{\"name\":\"typed\","
    "\"parameters\":{\"$defs\":{\"n\":{"
    "\"anyOf\":[{\"type\":\"number\"},{\"$ref\":\"#/$defs/"
    "n\"},{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":\"#/$defs/n\"}}}]}},"
    "\"properties\":{\"o\":{\"$ref\":\"#/$defs/"
    "n\"},\"a\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}},\"i\":{\"type\":\"integer\"}}}}}]";

static void check_delta(const gm_reply_delta *d)
{
    if (!d->len || gm_utf8_valid_len(d->text, d->len) != d->len) abort();
}

/* Joined: kind and index of each run with its text. */
static void join(gm_str *to, gm_reply_deltas *d, int *kind, int32_t *index)
{
    for (size_t i = 0; i < d->n; i++) {
        check_delta(&d->data[i]);
        if ((int)d->data[i].kind != *kind || d->data[i].index != *index || d->data[i].kind == GM_REPLY_CALL)
            gm_str_printf(to, "\x01%d %d\x02", (int)d->data[i].kind, d->data[i].index);
        gm_str_append(to, d->data[i].text, d->data[i].len);
        *kind = (int)d->data[i].kind;
        *index = d->data[i].index;
    }
    gm_reply_deltas_clear(d);
}

/* Every call's arguments, joined, are an object; of the last only when the reply ended by itself. */
static void check_calls(gm_reply_deltas *d, int32_t n_calls, bool truncated)
{
    gm_str *args = gm_new_array(gm_str, (size_t)n_calls + 1);
    for (size_t i = 0; i < d->n; i++)
        if (d->data[i].kind == GM_REPLY_ARGS)
            gm_str_append(&args[d->data[i].index], d->data[i].text, d->data[i].len);
    for (int32_t i = 0; i < n_calls; i++) {
        json_t *v = NULL;
        if (i + 1 < n_calls || !truncated) {
            gm_error err;
            if (gm_json_parse(&v, gm_str_c(&args[i]), args[i].len, "args", NULL, &err) &&
                !strstr(err.message, "too big") && !strstr(err.message, "nested") &&
                !strstr(err.message, "NUL byte in object key"))
                abort();
        }
        json_decref(v);
        gm_str_fini(&args[i]);
    }
    gm_free(args);
}

static void run(const gm_reply_params *p, const gm_str *text, bool truncated, gm_rng *cuts, gm_str *joined)
{
    gm_reply *r = gm_reply_create(p);
    gm_reply_deltas d = {0};
    int kind = -1;
    int32_t index = -1;
    for (size_t i = 0; i < text->len;) {
        size_t n = cuts ? 1 + (size_t)gm_rng_below(cuts, 9) : text->len;
        if (n > text->len - i) n = text->len - i;
        gm_reply_push(r, text->data + i, n, &d);
        if (cuts) join(joined, &d, &kind, &index);
        i += n;
    }
    gm_reply_finish(r, truncated, &d);
    if (!cuts) check_calls(&d, gm_reply_calls(r), truncated);
    join(joined, &d, &kind, &index);
    gm_reply_destroy(r);
    gm_reply_deltas_fini(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *tools;
    if (!tools && gm_json_parse(&tools, tools_json, strlen(tools_json), "tools", NULL, NULL)) abort();
    if (size < 2) return 0;
    gm_reply_params p = {.thinking = data[0] & 1,
                         .reasoning = data[0] & 2,
                         .tools = data[0] & 4 ? NULL : tools,
                         .parallel = !(data[0] & 8)};
    gm_rng cuts;
    gm_rng_init(&cuts, data[1]);
    gm_str text = {0}, whole = {0}, cut = {0};
    for (size_t i = 2; i < size; i++) {
        size_t w = (size_t)data[i] - 1;
        if (data[i] && w < sizeof words / sizeof *words) gm_str_puts(&text, words[w]);
        else gm_str_putc(&text, (char)data[i]);
    }
    run(&p, &text, data[0] & 16, NULL, &whole);
    run(&p, &text, data[0] & 16, &cuts, &cut);
    if (whole.len != cut.len || (whole.len && memcmp(whole.data, cut.data, whole.len) != 0)) abort();
    gm_str_fini(&text);
    gm_str_fini(&whole);
    gm_str_fini(&cut);
    return 0;
}
