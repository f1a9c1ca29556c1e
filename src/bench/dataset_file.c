/* Data sets from files: ShareGPT conversations, JSON lines of prompts, a poem. Orders and choices are those
 * of Python's random module with the same seed. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/dataset_internal.h"
#include "text/chat.h"

static gm_status need_tokenizer(const gm_dataset_params *p, const char *name, gm_error *err)
{
    if (p->tokenizer) return GM_OK;
    return gm_fail(err, GM_EARG, "--dataset-name %s counts tokens: it needs --tokenizer", name);
}

static gm_status count(const gm_dataset_params *p, const char *text, size_t len, int32_t *out, gm_error *err)
{
    gm_ids ids = {0};
    gm_status st = gm_tokenizer_encode(p->tokenizer, text, len, GM_ADDED_MATCH, &ids, err);
    *out = (int32_t)ids.n;
    gm_ids_fini(&ids);
    return st;
}

static gm_sample *add_text(gm_dataset *d, const char *text, size_t len, int32_t prompt_len,
                           int64_t output_len)
{
    gm_sample *s = gm_dataset_add(d);
    s->text = gm_strndup(text, len);
    s->text_len = len;
    s->prompt_len = prompt_len;
    s->output_len = (int32_t)output_len;
    return s;
}

static size_t *new_order(size_t n, const gm_settings *s)
{
    gm_mt19937 m;
    size_t *order = gm_new_array(size_t, n + 1);
    for (size_t i = 0; i < n; i++) order[i] = i;
    gm_mt19937_seed_python(&m, (uint64_t)s->seed);
    if (!s->disable_shuffle) gm_mt19937_shuffle(&m, order, n);
    return order;
}

/* ---- sharegpt ---- */

static const json_t *turn(const json_t *entry, size_t i)
{
    const json_t *v = json_object_get(json_array_get(json_object_get(entry, "conversations"), i), "value");
    return json_is_string(v) ? v : NULL;
}

/* vLLM's limits: neither so short that it says nothing nor so long that it dominates. */
static bool valid_lengths(int64_t prompt, int64_t output, bool fixed_output)
{
    return prompt >= 4 && (fixed_output || output >= 4) && prompt <= 1024 && prompt + output <= 2048;
}

gm_status gm_dataset_sharegpt(gm_dataset *d, const gm_settings *s, const gm_dataset_params *p, gm_error *err)
{
    json_t *root = NULL, *kept = json_array(), *entry;
    size_t i;
    bool fixed = gm_settings_given(s, output_len) || gm_settings_given(s, sharegpt_output_len);
    int64_t fixed_len = gm_settings_given(s, output_len) ? s->output_len : s->sharegpt_output_len;
    gm_status st = need_tokenizer(p, "sharegpt", err);
    if (!st) st = gm_json_load(&root, s->dataset_path, &(gm_json_limits){.bytes_max = (size_t)4 << 30}, err);
    if (!st && !json_is_array(root))
        st = gm_fail(err, GM_EFORMAT, "%s: not a list of conversations", s->dataset_path);
    json_array_foreach(root, i, entry) if (turn(entry, 0) && turn(entry, 1)) json_array_append(kept, entry);
    size_t n = json_array_size(kept);
    size_t *order = new_order(n, s);
    for (i = 0; i < n && !st && d->n < (size_t)s->num_prompts; i++) {
        const json_t *e = json_array_get(kept, order[i]), *prompt = turn(e, 0), *answer = turn(e, 1);
        int32_t n_prompt = 0, n_answer = 0;
        st = count(p, json_string_value(prompt), json_string_length(prompt), &n_prompt, err);
        if (!st && !fixed)
            st = count(p, json_string_value(answer), json_string_length(answer), &n_answer, err);
        int64_t n_output = fixed ? fixed_len : n_answer;
        if (!st && valid_lengths(n_prompt, n_output, fixed))
            add_text(d, json_string_value(prompt), json_string_length(prompt), n_prompt, n_output);
    }
    gm_free(order);
    json_decref(kept);
    json_decref(root);
    return st;
}

/* ---- chat template ---- */

typedef struct templater {
    gm_model_config config;
    gm_chat_format format;
} templater;

static gm_status templater_open(templater *t, const gm_dataset_params *p, gm_error *err)
{
    char *warning = NULL;
    gm_status st = p->model_dir ? gm_model_config_load(&t->config, p->model_dir, NULL, err)
                                : gm_fail(err, GM_ENOTFOUND, "no folder with a config.json is known");
    if (!st) st = gm_chat_detect(&t->format, p->model_dir, &t->config, &warning, err);
    gm_free(warning);
    if (st)
        return gm_context(
            err, st, "the chat template is not known (--skip-chat-template sends prompts as they stand)");
    return GM_OK;
}

static gm_status templater_render(const templater *t, const char *text, size_t len, gm_str *out,
                                  gm_error *err)
{
    json_t *messages = json_array(), *m = json_object();
    gm_chat_prompt prompt = {0};
    json_object_set_new(m, "role", json_string("user"));
    json_object_set_new(m, "content", json_stringn(text, len));
    json_array_append_new(messages, m);
    gm_chat_request req = {.messages = messages, .add_generation_prompt = true};
    gm_status st = gm_chat_render(&prompt, t->format, &req, err);
    gm_str_clear(out);
    if (!st) gm_str_append(out, gm_str_c(&prompt.text), prompt.text.len);
    gm_chat_prompt_fini(&prompt);
    json_decref(messages);
    return st;
}

/* ---- custom ---- */

static gm_status read_lines(json_t *rows, const char *path, gm_error *err)
{
    FILE *f = fopen(path, "rb");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int no = 0;
    gm_status st = GM_OK;
    if (!f) return gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
    while (!st && (n = getline(&line, &cap, f)) >= 0) {
        json_t *row = NULL;
        char what[256];
        no++;
        if (strspn(line, " \t\r\n") == (size_t)n) continue;
        snprintf(what, sizeof what, "%.200s:%d", path, no);
        st = gm_json_parse(&row, line, (size_t)n, what, NULL, err);
        if (!st && !json_is_string(json_object_get(row, "prompt")))
            st = gm_fail(err, GM_EFORMAT, "%s: an object with a string \"prompt\" is needed", what);
        if (!st) json_array_append(rows, row);
        json_decref(row);
    }
    free(line);
    fclose(f);
    return st;
}

gm_status gm_dataset_custom(gm_dataset *d, const gm_settings *s, const gm_dataset_params *p, gm_error *err)
{
    templater t;
    gm_str text = {0};
    json_t *rows = json_array();
    bool render = !s->skip_chat_template && !p->chat;
    int64_t output = gm_settings_given(s, output_len) ? s->output_len : s->custom_output_len;
    gm_status st = read_lines(rows, s->dataset_path, err);
    if (!st && render) st = templater_open(&t, p, err);
    size_t n = json_array_size(rows);
    size_t *order = new_order(n, s);
    for (size_t i = 0; i < n && !st && d->n < (size_t)s->num_prompts; i++) {
        const json_t *row = json_array_get(rows, order[i]), *prompt = json_object_get(row, "prompt"),
                     *wanted = json_object_get(row, "output_tokens");
        int32_t n_prompt = -1;
        gm_str_clear(&text);
        if (render)
            st = templater_render(&t, json_string_value(prompt), json_string_length(prompt), &text, err);
        else gm_str_append(&text, json_string_value(prompt), json_string_length(prompt));
        if (!st && p->tokenizer) st = count(p, gm_str_c(&text), text.len, &n_prompt, err);
        if (!st && output < 0 && !json_is_integer(wanted))
            st = gm_fail(
                err, GM_EFORMAT,
                "%s: row %zu has no whole number \"output_tokens\", which --custom-output-len -1 asks for",
                s->dataset_path, order[i] + 1);
        if (!st)
            add_text(d, gm_str_c(&text), text.len, n_prompt,
                     output < 0 ? json_integer_value(wanted) : output);
    }
    gm_free(order);
    gm_str_fini(&text);
    json_decref(rows);
    return st;
}

/* ---- sonnet ---- */

typedef struct poem {
    char **lines; /* with their line ends */
    size_t n, cap;
    double mean_len; /* tokens a line */
} poem;

static void poem_fini(poem *m)
{
    for (size_t i = 0; i < m->n; i++) gm_free(m->lines[i]);
    gm_free(m->lines);
}

static gm_status poem_read(poem *m, const char *path, const gm_dataset_params *p, gm_error *err)
{
    FILE *f = fopen(path, "rb");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int64_t total = 0;
    gm_status st = GM_OK;
    if (!f) return gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
    while (!st && (n = getline(&line, &cap, f)) >= 0) {
        int32_t k = 0;
        if (m->n == m->cap) {
            m->cap = m->cap ? 2 * m->cap : 64;
            m->lines = gm_realloc_array(m->lines, m->cap, sizeof *m->lines);
        }
        m->lines[m->n++] = gm_strndup(line, (size_t)n);
        st = count(p, line, (size_t)n, &k, err);
        total += k;
    }
    free(line);
    fclose(f);
    if (!st && !total) st = gm_fail(err, GM_EFORMAT, "%s: no lines", path);
    if (!st) m->mean_len = (double)total / (double)m->n;
    return st;
}

static long round_half_even(double x)
{
    return lrint(x); /* Python's round(), in the default rounding mode */
}

gm_status gm_dataset_sonnet(gm_dataset *d, const gm_settings *s, const gm_dataset_params *p, gm_error *err)
{
    static const char base[] = "Pick as many lines as you can from these poem lines:\n";
    int64_t in = gm_settings_given(s, input_len) ? s->input_len : s->sonnet_input_len;
    int64_t out = gm_settings_given(s, output_len) ? s->output_len : s->sonnet_output_len;
    poem m = {0};
    templater t;
    gm_mt19937 r;
    gm_str prompt = {0}, rendered = {0};
    int32_t n_base = 0, n_prompt = 0;
    gm_status st = need_tokenizer(p, "sonnet", err);
    if (!st) st = templater_open(&t, p, err);
    if (!st) st = poem_read(&m, s->dataset_path, p, err);
    if (!st) st = templater_render(&t, base, sizeof base - 1, &rendered, err);
    if (!st) st = count(p, gm_str_c(&rendered), rendered.len, &n_base, err);
    if (!st && in <= n_base)
        st = gm_fail(err, GM_EARG, "--sonnet-input-len must be above %d, the tokens of the question", n_base);
    long lines = st ? 0 : round_half_even((double)(in - n_base) / m.mean_len);
    long fixed = st ? 0 : round_half_even((double)(s->sonnet_prefix_len - n_base) / m.mean_len);
    if (fixed < 0) fixed = 0;
    if (fixed > (long)m.n) fixed = (long)m.n;
    gm_mt19937_seed_python(&r, (uint64_t)s->seed);
    for (int64_t tries = 0; !st && d->n < (size_t)s->num_prompts; tries++) {
        if (tries > 1000 + 100 * s->num_prompts)
            st = gm_fail(err, GM_EARG, "no sonnet prompt stays within %lld tokens", (long long)in);
        gm_str_clear(&prompt);
        gm_str_puts(&prompt, base);
        for (long i = 0; i < fixed; i++) gm_str_puts(&prompt, m.lines[i]);
        for (long i = fixed; i < lines; i++) gm_str_puts(&prompt, m.lines[gm_mt19937_choice(&r, m.n)]);
        if (!st) st = templater_render(&t, gm_str_c(&prompt), prompt.len, &rendered, err);
        if (!st) st = count(p, gm_str_c(&rendered), rendered.len, &n_prompt, err);
        const gm_str *send = p->chat ? &prompt : &rendered;
        if (!st && n_prompt <= in) add_text(d, gm_str_c(send), send->len, n_prompt, out);
    }
    gm_str_fini(&prompt);
    gm_str_fini(&rendered);
    poem_fini(&m);
    return st;
}
