#include "bench/align.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { ROUNDS = 10 };

typedef struct remote {
    gm_client *c;
    const char *base, *model;
    gm_str body, answer, url;
    json_t *tokens; /* of the last count */
} remote;

static gm_status post(remote *r, const char *path, json_t *request, long *status, json_t **answer,
                      gm_error *err)
{
    gm_str_clear(&r->body);
    gm_str_clear(&r->url);
    gm_str_printf(&r->url, "%s%s", r->base, path);
    gm_json_put(&r->body, request);
    json_decref(request);
    gm_status st =
        gm_client_fetch(r->c, "POST", gm_str_c(&r->url), gm_str_c(&r->body), 600, status, &r->answer, err);
    *answer = NULL;
    if (!st && *status == 200)
        st = gm_json_parse(answer, gm_str_c(&r->answer), r->answer.len, path, NULL, err);
    return st;
}

/* *n: the server's count; *status other than 200: it does not say. */
static gm_status count(remote *r, const char *text, size_t len, long *status, size_t *n, gm_error *err)
{
    json_t *q = json_object(), *a;
    json_object_set_new(q, "model", json_string(r->model));
    json_object_set_new(q, "prompt", json_stringn(text, len));
    json_object_set_new(q, "add_special_tokens", json_false());
    gm_status st = post(r, "/tokenize", q, status, &a, err);
    json_decref(r->tokens);
    r->tokens = json_incref(json_object_get(a, "tokens"));
    *n = json_array_size(r->tokens);
    json_decref(a);
    return st;
}

static gm_status text_of_tokens(remote *r, size_t n, char **text, size_t *len, gm_error *err)
{
    json_t *q = json_object(), *a, *list = json_array();
    long status;
    for (size_t i = 0; i < n; i++) json_array_append(list, json_array_get(r->tokens, i));
    json_object_set_new(q, "model", json_string(r->model));
    json_object_set_new(q, "tokens", list);
    gm_status st = post(r, "/detokenize", q, &status, &a, err);
    const json_t *p = json_object_get(a, "prompt");
    if (!st && !json_is_string(p))
        st = gm_fail(err, GM_EFORMAT, "/detokenize: HTTP %ld without a prompt", status);
    if (!st) {
        *len = json_string_length(p);
        *text = gm_strndup(json_string_value(p), *len);
    }
    json_decref(a);
    return st;
}

/* Cut with the server's ids, or lengthen by words, until it counts right. */
static gm_status fix(remote *r, gm_sample *s, bool *exact, gm_error *err)
{
    long status;
    size_t n, want = (size_t)s->prompt_len;
    *exact = false;
    for (int round = 0; round < ROUNDS; round++) {
        gm_status st = count(r, s->text, s->text_len, &status, &n, err);
        if (st || status != 200) return st;
        if (n == want) {
            *exact = true;
            return GM_OK;
        }
        char *text = s->text;
        size_t len = s->text_len;
        if (n > want) {
            /* not at the same place again and again: some cuts do not come back as they were */
            size_t keep = want > (size_t)round ? want - (size_t)round : want;
            if ((st = text_of_tokens(r, keep, &text, &len, err))) return st;
        } else {
            gm_str longer = {0};
            gm_str_append(&longer, text, len);
            for (size_t i = n; i < want; i++) gm_str_puts(&longer, i % 2 ? " and" : " the");
            len = longer.len;
            text = gm_str_take(&longer);
        }
        gm_free(s->text);
        s->text = text;
        s->text_len = len;
    }
    return GM_OK;
}

static gm_status fix_all(remote *r, gm_dataset *d, gm_error *err)
{
    size_t left = 0;
    for (size_t i = 0; i < d->n; i++) {
        bool exact;
        gm_status st = fix(r, &d->samples[i], &exact, err);
        if (st) return st;
        left += !exact;
    }
    if (left) printf("WARNING: %zu prompts could not be given the length asked for.\n", left);
    return GM_OK;
}

gm_status gm_align_to_server(gm_dataset *d, gm_client *c, const char *base, const char *model, bool *ids_only,
                             gm_error *err)
{
    remote r = {.c = c, .base = base, .model = model};
    gm_status st = GM_OK;
    size_t look[3] = {0, 0, 0}, n;
    long status = 200;
    *ids_only = false;
    for (size_t i = 1; i < d->n; i++) {
        if (d->samples[i].prompt_len < d->samples[look[1]].prompt_len) look[1] = i;
        if (d->samples[i].prompt_len > d->samples[look[2]].prompt_len) look[2] = i;
    }
    for (int k = 0; k < 3; k++) {
        gm_sample *s = &d->samples[look[k]];
        st = count(&r, s->text, s->text_len, &status, &n, err);
        if (st == GM_EIO) {
            st = GM_OK;
            status = 0; /* no answer at all: the run will say so better */
        }
        if (st || status != 200) break;
        if (n == (size_t)s->prompt_len) continue;
        printf("WARNING: tokenizer mismatch (server=%zu, expected=%d), re-aligning prompts.\n", n,
               s->prompt_len);
        st = fix_all(&r, d, err);
        break;
    }
    if (!st && status != 200) {
        bool none = status == 400 && strstr(gm_str_c(&r.answer), "skip-tokenizer-init");
        if (none && d->samples[0].ids) {
            printf("The server has no tokenizer: prompts are sent as token ids.\n");
            *ids_only = true;
        } else {
            printf("WARNING: /tokenize unavailable (HTTP %ld), skipping alignment.\n", status);
        }
    }
    json_decref(r.tokens);
    gm_str_fini(&r.body);
    gm_str_fini(&r.answer);
    gm_str_fini(&r.url);
    return st;
}
