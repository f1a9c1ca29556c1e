/* From engine events to answers: detokenize, look for stop strings, cut the reply into reasoning, content and calls, and
 * write chunks or one body. Runs on a writer; the sink alone runs on the engine thread. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/server_internal.h"

/* ---- events ---- */

static gm_logprob_row *copy_rows(const gm_logprob_row *rows, int32_t n)
{
    if (!rows || n <= 0) return NULL;
    gm_logprob_row *out = gm_new_array(gm_logprob_row, n);
    for (int32_t i = 0; i < n; i++) {
        out[i] = rows[i];
        size_t k = (size_t)(rows[i].n_top > 0 ? rows[i].n_top : 0);
        if (rows[i].top_ids) {
            int32_t *ids = gm_new_array(int32_t, k);
            memcpy(ids, rows[i].top_ids, k * sizeof *ids);
            out[i].top_ids = ids;
        }
        if (rows[i].top_logprobs) {
            float *lp = gm_new_array(float, k);
            memcpy(lp, rows[i].top_logprobs, k * sizeof *lp);
            out[i].top_logprobs = lp;
        }
    }
    return out;
}

static gm_job_event *copy_event(const gm_event *ev, int32_t choice)
{
    gm_job_event *e = gm_new(gm_job_event);
    e->choice = choice;
    e->kind = ev->kind;
    switch (ev->kind) {
    case GM_EVENT_TOKENS:
        e->n_tokens = ev->n_tokens;
        e->tokens = gm_new_array(int32_t, ev->n_tokens);
        memcpy(e->tokens, ev->tokens, (size_t)ev->n_tokens * sizeof *e->tokens);
        e->n_rows = ev->logprobs ? ev->n_tokens : 0;
        e->rows = copy_rows(ev->logprobs, ev->n_tokens);
        break;
    case GM_EVENT_PROMPT_LOGPROBS:
        e->row_begin = ev->row_begin;
        e->n_rows = ev->n_rows;
        e->rows = copy_rows(ev->rows, ev->n_rows);
        break;
    case GM_EVENT_FINISH:
        e->finish = ev->finish;
        e->stop_token = ev->stop_token;
        e->stop_is_eos = ev->stop_is_eos;
        e->message = ev->message ? gm_strdup(ev->message) : NULL;
        e->n_prompt = ev->n_prompt;
        e->n_cached = ev->n_cached;
        e->n_output = ev->n_output;
        break;
    }
    return e;
}

static void free_event(gm_job_event *e)
{
    for (int32_t i = 0; e->rows && i < e->n_rows; i++) {
        gm_free((void *)(uintptr_t)e->rows[i].top_ids);
        gm_free((void *)(uintptr_t)e->rows[i].top_logprobs);
    }
    gm_free(e->rows);
    gm_free(e->tokens);
    gm_free(e->message);
    gm_free(e);
}

void gm_job_events_free(gm_job_event *e)
{
    while (e) {
        gm_job_event *next = e->next;
        free_event(e);
        e = next;
    }
}

/* The reference that the engine request holds passes to its FINISH event, and the writer drops it there: the engine
 * thread never frees a job. */
void gm_job_sink(void *choice, const gm_event *ev)
{
    gm_choice *c = choice;
    gm_job *j = c->job;
    gm_job_event *e = copy_event(ev, c->index);
    bool finish = ev->kind == GM_EVENT_FINISH;
    pthread_mutex_lock(&j->lock);
    *j->events_tail = e;
    j->events_tail = &e->next;
    if (finish) c->engine_done = true;
    bool kick = !j->writer_busy && (!j->writer_held || finish);
    if (kick) {
        j->writer_busy = true;
        j->writer_held = false;
    }
    pthread_mutex_unlock(&j->lock);
    if (kick) gm_job_to_writer(j);
}

/* ---- choices ---- */

void gm_choice_init(gm_choice *c, gm_job *j, int32_t index, int32_t prompt)
{
    const gm_server_params *p = &j->srv->p;
    const gm_api_request *r = &j->req;
    *c = (gm_choice){.job = j, .index = index, .prompt = prompt, .stop_id = -1};
    /* Tags that the parser needs may be special tokens; then none is skipped here. */
    bool tags_special = j->parsing && (gm_tokenizer_is_special(p->tokenizer, gm_tokenizer_added_id(p->tokenizer, "</think>")) ||
                                       gm_tokenizer_is_special(p->tokenizer, gm_tokenizer_added_id(p->tokenizer, "<tool_call>")));
    if (p->tokenizer) gm_detok_init(&c->detok, p->tokenizer, r->skip_special && !tags_special);
    if (r->n_stops) c->stopper = gm_stopper_create(r->stops, r->stop_lens, r->n_stops, r->include_stop);
    if (!j->parsing) return;
    gm_reply_params rp = {.thinking = j->thinking,
                          .reasoning = p->reasoning_parser,
                          .tools = r->tool_choice == GM_TOOLS_AUTO && p->tool_parser ? r->tools : NULL,
                          .parallel = r->parallel_calls};
    c->reply = gm_reply_create(&rp);
}

static void lp_clear(gm_lp *l)
{
    gm_str_clear(&l->items);
    gm_str_clear(&l->tokens);
    gm_str_clear(&l->values);
    gm_str_clear(&l->tops);
    gm_str_clear(&l->offsets);
    l->n = 0;
}

void gm_choice_fini(gm_choice *c)
{
    gm_stopper_destroy(c->stopper);
    gm_reply_destroy(c->reply);
    gm_reply_deltas_fini(&c->deltas);
    gm_str_fini(&c->text);
    gm_ids_fini(&c->ids);
    gm_str_fini(&c->lp.items);
    gm_str_fini(&c->lp.tokens);
    gm_str_fini(&c->lp.values);
    gm_str_fini(&c->lp.tops);
    gm_str_fini(&c->lp.offsets);
    gm_str_fini(&c->reasoning);
    gm_str_fini(&c->content);
    gm_str_fini(&c->prompt_lp);
    for (int32_t i = 0; i < c->n_calls; i++) {
        gm_str_fini(&c->calls[i].name);
        gm_str_fini(&c->calls[i].args);
    }
    gm_free(c->calls);
    gm_free(c->stop_text);
}

/* ---- logprobs ---- */

static void put_float(gm_str *out, float v)
{
    char s[32];
    if (!(v > -9999.0f)) v = -9999.0f; /* JSON has no infinity */
    snprintf(s, sizeof s, "%.9g", (double)v);
    gm_str_puts(out, s);
    if (!strpbrk(s, ".en")) gm_str_puts(out, ".0");
}

/* The text of one token, not yet as JSON. */
static void token_text(const gm_job *j, int32_t id, gm_str *out)
{
    size_t n = 0;
    const char *b = j->srv->p.tokenizer ? gm_tokenizer_bytes(j->srv->p.tokenizer, id, &n) : NULL;
    gm_str_clear(out);
    if (j->req.tokens_as_ids || j->srv->p.tokens_as_ids || !b) gm_str_printf(out, "token_id:%d", (int)id);
    else gm_str_append(out, b, n);
}

static void put_token(const gm_job *j, int32_t id, gm_str *tmp, gm_str *out)
{
    token_text(j, id, tmp);
    gm_json_put_string(out, gm_str_c(tmp), tmp->len);
}

static int32_t top_id(const gm_logprob_row *r, int32_t i)
{
    return r->top_ids ? r->top_ids[i] : i;
}

static void put_chat_token(const gm_job *j, int32_t id, float v, gm_str *tmp, gm_str *out)
{
    gm_str_puts(out, "{\"token\":");
    put_token(j, id, tmp, out);
    gm_str_puts(out, ",\"logprob\":");
    put_float(out, v);
    gm_str_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < tmp->len; i++) gm_str_printf(out, i ? ",%d" : "%d", (unsigned char)tmp->data[i]);
    gm_str_putc(out, ']');
}

static void add_chat_row(const gm_job *j, gm_lp *l, const gm_logprob_row *r, int32_t n_top)
{
    gm_str tmp = {0};
    if (l->items.len) gm_str_putc(&l->items, ',');
    put_chat_token(j, r->token, r->logprob, &tmp, &l->items);
    gm_str_puts(&l->items, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < n_top; i++) {
        if (i) gm_str_putc(&l->items, ',');
        put_chat_token(j, top_id(r, i), r->top_logprobs[i], &tmp, &l->items);
        gm_str_putc(&l->items, '}');
    }
    gm_str_puts(&l->items, "]}");
    l->n++;
    gm_str_fini(&tmp);
}

static int64_t chars_of(const gm_str *s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s->len; i++) n += (s->data[i] & 0xC0) != 0x80;
    return n;
}

/* r NULL: the first prompt token, which has none. */
static void add_text_row(const gm_job *j, gm_lp *l, int32_t token, const gm_logprob_row *r, int32_t n_top)
{
    gm_str tmp = {0};
    const char *sep = l->n++ ? "," : "";
    gm_str_printf(&l->offsets, "%s%lld", sep, (long long)l->chars);
    gm_str_puts(&l->tokens, sep);
    gm_str_puts(&l->values, sep);
    gm_str_puts(&l->tops, sep);
    put_token(j, token, &tmp, &l->tokens);
    l->chars += chars_of(&tmp);
    if (!r) {
        gm_str_puts(&l->values, "null");
        gm_str_puts(&l->tops, "null");
        gm_str_fini(&tmp);
        return;
    }
    put_float(&l->values, r->logprob);
    gm_str_putc(&l->tops, '{');
    bool listed = false;
    for (int32_t i = 0; i < n_top && !listed; i++) listed = top_id(r, i) == token;
    if (!listed) {
        put_token(j, token, &tmp, &l->tops);
        gm_str_putc(&l->tops, ':');
        put_float(&l->tops, r->logprob);
    }
    for (int32_t i = 0; i < n_top; i++) {
        if (i || !listed) gm_str_putc(&l->tops, ',');
        put_token(j, top_id(r, i), &tmp, &l->tops);
        gm_str_putc(&l->tops, ':');
        put_float(&l->tops, r->top_logprobs[i]);
    }
    gm_str_putc(&l->tops, '}');
    gm_str_fini(&tmp);
}

static void add_row(gm_choice *c, const gm_logprob_row *r)
{
    const gm_job *j = c->job;
    if (j->req.kind == GM_API_CHAT) add_chat_row(j, &c->lp, r, r->n_top);
    else add_text_row(j, &c->lp, r->token, r, r->n_top);
}

static void put_lp(const gm_job *j, const gm_lp *l, gm_str *out)
{
    if (!j->req.want_logprobs) {
        gm_str_puts(out, "null");
    } else if (j->req.kind == GM_API_CHAT) {
        gm_str_printf(out, "{\"content\":[%s]}", gm_str_c(&l->items));
    } else {
        gm_str_printf(out, "{\"text_offset\":[%s],\"token_logprobs\":[%s],\"tokens\":[%s],\"top_logprobs\":[%s]}",
                      gm_str_c(&l->offsets), gm_str_c(&l->values), gm_str_c(&l->tokens), gm_str_c(&l->tops));
    }
}

/* ---- prompt logprobs ---- */

static int by_logprob(const void *a, const void *b, void *values)
{
    const float *v = values;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (v[x] != v[y]) return v[x] > v[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void put_prompt_entry(const gm_job *j, int32_t id, float v, int32_t rank, gm_str *tmp, gm_str *out)
{
    size_t n;
    const char *b = j->srv->p.tokenizer ? gm_tokenizer_bytes(j->srv->p.tokenizer, id, &n) : NULL;
    (void)tmp;
    gm_str_printf(out, "\"%d\":{\"logprob\":", (int)id);
    put_float(out, v);
    gm_str_printf(out, ",\"rank\":%d,\"decoded_token\":", (int)rank);
    if (b) gm_json_put_string(out, b, n);
    else gm_str_puts(out, "null");
    gm_str_putc(out, '}');
}

static void add_prompt_row(const gm_job *j, gm_str *out, const gm_logprob_row *r)
{
    gm_str tmp = {0};
    int32_t *rank = NULL;
    if (!r->top_ids && r->n_top) { /* every id in order: ranks come from sorting */
        int32_t *order = gm_new_array(int32_t, r->n_top);
        rank = gm_new_array(int32_t, r->n_top);
        for (int32_t i = 0; i < r->n_top; i++) order[i] = i;
        qsort_r(order, (size_t)r->n_top, sizeof *order, by_logprob, (void *)(uintptr_t)r->top_logprobs);
        for (int32_t i = 0; i < r->n_top; i++) rank[order[i]] = i + 1;
        gm_free(order);
    }
    gm_str_putc(out, '{');
    put_prompt_entry(j, r->token, r->logprob, r->rank, &tmp, out);
    for (int32_t i = 0; i < r->n_top; i++) {
        int32_t id = top_id(r, i);
        if (id == r->token) continue;
        gm_str_putc(out, ',');
        put_prompt_entry(j, id, r->top_logprobs[i], rank ? rank[i] : i + 1, &tmp, out);
    }
    gm_str_putc(out, '}');
    gm_free(rank);
    gm_str_fini(&tmp);
}

static void take_prompt_rows(gm_choice *c, const gm_job_event *e)
{
    const gm_job *j = c->job;
    bool echo = j->req.echo && j->req.want_logprobs;
    for (int32_t i = 0; i < e->n_rows; i++) {
        const gm_logprob_row *r = &e->rows[i];
        if (j->req.want_prompt_logprobs) {
            gm_str_putc(&c->prompt_lp, ',');
            add_prompt_row(j, &c->prompt_lp, r);
        }
        if (echo && !c->n_prompt_lp) add_text_row(j, &c->lp, j->prompts[c->prompt].data[0], NULL, 0);
        if (echo) add_text_row(j, &c->lp, r->token, r, r->n_top);
        c->n_prompt_lp++;
    }
}

/* ---- text ---- */

static void show(gm_choice *c, const char *text, size_t n)
{
    if (!n) return;
    if (c->reply) gm_reply_push(c->reply, text, n, &c->deltas);
    else gm_str_append(&c->text, text, n);
}

static void end_choice(gm_choice *c, const char *why)
{
    gm_job *j = c->job;
    if (c->finish) return;
    if (c->reply) gm_reply_finish(c->reply, !strcmp(why, "length"), &c->deltas);
    bool called = c->reply && gm_reply_calls(c->reply) > 0;
    c->finish = !strcmp(why, "stop") && called ? "tool_calls" : why;
    c->done = true;
    j->n_open--;
    if (j->srv->metrics.max_generation.bounds)
        gm_metrics_observe(&j->srv->metrics, &j->srv->metrics.max_generation, c->n_out);
}

static void show_stopped(gm_choice *c, const char *text, size_t n)
{
    const gm_api_request *r = &c->job->req;
    if (!c->stopper || c->n_out < r->min_tokens) {
        show(c, text, n);
        return;
    }
    gm_str out = {0};
    int hit = gm_stopper_push(c->stopper, text, n, &out);
    show(c, gm_str_c(&out), out.len);
    gm_str_fini(&out);
    if (hit < 0) return;
    c->stop_text = gm_strndup(r->stops[hit], r->stop_lens[hit]);
    end_choice(c, "stop");
}

static void push_token(gm_choice *c, int32_t id)
{
    gm_job *j = c->job;
    gm_str out = {0};
    gm_error err = {0};
    if (!j->srv->p.tokenizer) return;
    if (gm_detok_push(&c->detok, id, &out, &err)) gm_debug("request %s: %s", j->id, err.message);
    show_stopped(c, gm_str_c(&out), out.len);
    if (c->reply && gm_reply_in_reasoning(c->reply)) c->n_reasoning++;
    gm_str_fini(&out);
}

/* An end token's text is not shown, but only FINISH tells that a token was one. */
static bool may_end(const gm_choice *c, int32_t id)
{
    const gm_job *j = c->job;
    const gm_api_request *r = &j->req;
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    for (int32_t i = 0; i < j->srv->p.n_eos && !r->ignore_eos; i++)
        if (j->srv->p.eos[i] == id) return true;
    return false;
}

static void take_token(gm_choice *c, int32_t id, const gm_logprob_row *row)
{
    const gm_job *j = c->job;
    if (c->has_held) {
        c->has_held = false;
        push_token(c, c->held);
        if (c->done) return;
    }
    c->n_out++;
    c->n_pending++;
    if (j->req.return_token_ids) gm_ids_push(&c->ids, id);
    if (row && j->req.want_logprobs) add_row(c, row);
    if (may_end(c, id)) {
        c->has_held = true;
        c->held = id;
    } else {
        push_token(c, id);
    }
}

static const char *finish_word(gm_finish f)
{
    return f == GM_FINISH_STOP ? "stop" : f == GM_FINISH_LENGTH ? "length" : "abort";
}

static void finish_text(gm_choice *c, const gm_job_event *e)
{
    const gm_api_request *r = &c->job->req;
    gm_str out = {0};
    if (c->has_held && (e->finish != GM_FINISH_STOP || r->include_stop)) push_token(c, c->held);
    c->has_held = false;
    if (!c->done && c->job->srv->p.tokenizer) {
        gm_detok_finish(&c->detok, &out);
        show_stopped(c, gm_str_c(&out), out.len);
    }
    gm_str_clear(&out);
    if (!c->done && c->stopper) {
        gm_stopper_finish(c->stopper, &out);
        show(c, gm_str_c(&out), out.len);
    }
    gm_str_fini(&out);
}

static void take_finish(gm_choice *c, const gm_job_event *e)
{
    c->n_cached = e->n_cached;
    if (c->done) return;
    finish_text(c, e);
    if (c->done) return;
    if (e->finish == GM_FINISH_STOP && !e->stop_is_eos) c->stop_id = e->stop_token;
    end_choice(c, finish_word(e->finish));
}

/* ---- pieces of JSON ---- */

static void put_text(gm_str *out, const gm_str *s)
{
    gm_json_put_string(out, gm_str_c(s), s->len);
}

static void put_id_list(gm_str *out, const int32_t *ids, size_t n)
{
    gm_str_putc(out, '[');
    for (size_t i = 0; i < n; i++) gm_str_printf(out, i ? ",%d" : "%d", (int)ids[i]);
    gm_str_putc(out, ']');
}

static void put_stop_reason(gm_str *out, const gm_choice *c)
{
    if (c->stop_text) gm_json_put_string(out, c->stop_text, strlen(c->stop_text));
    else if (c->stop_id >= 0) gm_str_printf(out, "%lld", (long long)c->stop_id);
    else gm_str_puts(out, "null");
}

static void put_finish(gm_str *out, const gm_choice *c, bool last)
{
    if (last) gm_str_printf(out, "\"finish_reason\":\"%s\"", c->finish);
    else gm_str_puts(out, "\"finish_reason\":null");
}

static void put_tokens_field(gm_str *out, const gm_choice *c, bool with)
{
    gm_str_puts(out, ",\"token_ids\":");
    if (c->job->req.return_token_ids && with) put_id_list(out, c->ids.data, c->ids.n);
    else gm_str_puts(out, "null");
}

static void put_usage(gm_str *out, const gm_job *j, int64_t completion, bool whole)
{
    int64_t cached = 0, reasoning = 0;
    for (int32_t i = 0; i < j->n_choices; i++) {
        if (i % j->req.n == 0) cached += j->choices[i].n_cached;
        reasoning += j->choices[i].n_reasoning;
    }
    gm_str_printf(out, "\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld,\"completion_tokens\":%lld",
                  (long long)j->prompt_tokens, (long long)(j->prompt_tokens + completion), (long long)completion);
    if (j->srv->p.prompt_tokens_details)
        gm_str_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld%s}", (long long)cached,
                      whole ? ",\"multimodal_tokens\":null" : "");
    else if (whole) gm_str_puts(out, ",\"prompt_tokens_details\":null");
    if (j->parsing && j->srv->p.reasoning_parser)
        gm_str_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%lld}", (long long)reasoning);
    gm_str_putc(out, '}');
}

static int64_t completion_tokens(const gm_job *j)
{
    int64_t n = 0;
    for (int32_t i = 0; i < j->n_choices; i++) n += j->choices[i].n_out;
    return j->req.has_max_tokens && j->req.max_tokens == 0 ? 0 : n;
}

/* ---- streams ---- */

static bool is_chat(const gm_job *j)
{
    return j->req.kind == GM_API_CHAT;
}

static void chunk_head(gm_str *out, const gm_job *j)
{
    gm_str_puts(out, "data: {\"id\":");
    gm_json_put_string(out, j->id, strlen(j->id));
    gm_str_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":",
                  is_chat(j) ? "chat.completion.chunk" : "text_completion", (long long)j->created);
    gm_json_put_string(out, j->srv->names[0], strlen(j->srv->names[0]));
}

static void put_running_usage(gm_str *out, const gm_job *j, int64_t completion)
{
    if (!j->req.continuous_usage) return;
    gm_str_putc(out, ',');
    put_usage(out, j, completion, false);
}

static void put_role_chunk(gm_choice *c, gm_str *out)
{
    gm_job *j = c->job;
    const gm_ids *p = &j->prompts[c->prompt];
    chunk_head(out, j);
    gm_str_printf(out, ",\"choices\":[{\"index\":%d,\"delta\":{\"role\":", (int)c->index);
    gm_json_put_string(out, j->srv->role, strlen(j->srv->role));
    gm_str_puts(out, ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
    put_running_usage(out, j, 0);
    gm_str_puts(out, ",\"prompt_token_ids\":");
    if (j->req.return_token_ids && !j->ids_sent) put_id_list(out, p->data, p->n);
    else gm_str_puts(out, "null");
    j->ids_sent = true;
    gm_str_puts(out, ",\"prompt_text\":null}\n\n");
    c->role_sent = true;
}

/* One chunk of a chat stream with this delta (the inside of its braces). */
static void put_chat_chunk(gm_choice *c, gm_str *out, const char *delta, bool first, bool last)
{
    const gm_job *j = c->job;
    chunk_head(out, j);
    gm_str_printf(out, ",\"choices\":[{\"index\":%d,\"delta\":{%s},\"logprobs\":", (int)c->index, delta);
    if (first && c->lp.n) put_lp(j, &c->lp, out);
    else gm_str_puts(out, "null");
    gm_str_putc(out, ',');
    put_finish(out, c, last);
    if (last) {
        gm_str_puts(out, ",\"stop_reason\":");
        put_stop_reason(out, c);
    }
    put_tokens_field(out, c, first);
    gm_str_puts(out, "}]");
    put_running_usage(out, j, completion_tokens(j));
    if (last && !j->req.include_usage) {
        gm_str_puts(out, ",\"system_fingerprint\":");
        gm_json_put_string(out, j->srv->fingerprint, strlen(j->srv->fingerprint));
    }
    gm_str_puts(out, "}\n\n");
}

static void put_call_start(gm_str *out, const gm_reply_delta *d)
{
    char id[20];
    gm_random_hex(id, 16);
    gm_str_printf(out, "\"tool_calls\":[{\"id\":\"chatcmpl-tool-%s\",\"type\":\"function\",\"index\":%d,\"function\":{\"name\":",
                  id, (int)d->index);
    gm_json_put_string(out, d->text ? d->text : "", d->len);
    gm_str_puts(out, "}}]");
}

static void put_call_args(gm_str *out, const gm_reply_delta *d)
{
    gm_str_printf(out, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", (int)d->index);
    gm_json_put_string(out, d->text ? d->text : "", d->len);
    gm_str_puts(out, "}}]");
}

static void put_reasoning(gm_str *out, const gm_job *j, const char *s, size_t n)
{
    gm_str_puts(out, "\"reasoning\":");
    gm_json_put_string(out, s, n);
    if (!j->srv->p.reasoning_content) return;
    gm_str_puts(out, ",\"reasoning_content\":");
    gm_json_put_string(out, s, n);
}

/* The insides of delta objects: reasoning and content that follow one another share one, call pieces have their own. */
static int collect_deltas(gm_choice *c, gm_str **list)
{
    const gm_job *j = c->job;
    gm_str *out = gm_new_array(gm_str, c->deltas.n + 1);
    int n = 0;
    gm_reply_kind last = GM_REPLY_ARGS;
    for (size_t i = 0; i < c->deltas.n; i++) {
        const gm_reply_delta *d = &c->deltas.data[i];
        if (d->kind == GM_REPLY_REASONING && !j->req.include_reasoning) continue;
        if (d->kind == GM_REPLY_REASONING) {
            put_reasoning(&out[n++], j, d->text ? d->text : "", d->len);
        } else if (d->kind == GM_REPLY_CONTENT) {
            if (n && last == GM_REPLY_REASONING) gm_str_putc(&out[--n], ',');
            gm_str_puts(&out[n], "\"content\":");
            gm_json_put_string(&out[n++], d->text ? d->text : "", d->len);
        } else if (d->kind == GM_REPLY_CALL) {
            put_call_start(&out[n++], d);
        } else {
            put_call_args(&out[n++], d);
        }
        last = d->kind;
    }
    *list = out;
    return n;
}

/* False: there was nothing to show, so what goes with the text waits for the next chunk. */
static bool put_parsed_chunks(gm_choice *c, gm_str *out)
{
    gm_str *list;
    int n = collect_deltas(c, &list);
    for (int i = 0; i < n; i++) put_chat_chunk(c, out, gm_str_c(&list[i]), i == 0, c->finish && i == n - 1);
    bool bare = !n && (c->finish || c->job->req.return_token_ids);
    if (bare) put_chat_chunk(c, out, "", true, c->finish != NULL);
    for (int i = 0; i < n; i++) gm_str_fini(&list[i]);
    gm_free(list);
    gm_reply_deltas_clear(&c->deltas);
    return n || bare;
}

static void put_plain_chunk(gm_choice *c, gm_str *out)
{
    gm_str delta = {0};
    gm_str_puts(&delta, "\"content\":");
    put_text(&delta, &c->text);
    put_chat_chunk(c, out, gm_str_c(&delta), true, c->finish != NULL);
    gm_str_fini(&delta);
}

static void put_text_chunk(gm_choice *c, gm_str *out)
{
    gm_job *j = c->job;
    const gm_ids *p = &j->prompts[c->prompt];
    chunk_head(out, j);
    gm_str_printf(out, ",\"choices\":[{\"index\":%d,\"text\":", (int)c->index);
    put_text(out, &c->text);
    gm_str_puts(out, ",\"logprobs\":");
    if (c->lp.n) put_lp(j, &c->lp, out);
    else gm_str_puts(out, "null");
    gm_str_putc(out, ',');
    put_finish(out, c, c->finish != NULL);
    gm_str_puts(out, ",\"stop_reason\":");
    put_stop_reason(out, c);
    gm_str_puts(out, ",\"prompt_token_ids\":");
    if (j->req.return_token_ids && !c->shown) put_id_list(out, p->data, p->n);
    else gm_str_puts(out, "null");
    put_tokens_field(out, c, true);
    gm_str_puts(out, "}]");
    put_running_usage(out, j, completion_tokens(j));
    gm_str_puts(out, "}\n\n");
}

/* What choice c has gathered becomes chunks. */
static void flush_choice(gm_choice *c, gm_str *out)
{
    const gm_job *j = c->job;
    bool chat = is_chat(j);
    if (!c->n_out && !c->finish) return;
    if (c->shown && !c->finish && c->n_pending < j->req.stream_interval) return;
    if (chat && !c->role_sent) put_role_chunk(c, out);
    if (!chat) put_text_chunk(c, out);
    else if (c->reply && !put_parsed_chunks(c, out)) return;
    else if (!c->reply) put_plain_chunk(c, out);
    c->shown++;
    c->n_pending = 0;
    gm_str_clear(&c->text);
    c->ids.n = 0;
    lp_clear(&c->lp);
}

static void put_stream_end(const gm_job *j, gm_str *out)
{
    if (j->req.include_usage) {
        chunk_head(out, j);
        gm_str_puts(out, ",\"choices\":[],");
        put_usage(out, j, completion_tokens(j), false);
        gm_str_puts(out, ",\"system_fingerprint\":");
        gm_json_put_string(out, j->srv->fingerprint, strlen(j->srv->fingerprint));
        gm_str_puts(out, "}\n\n");
    }
    gm_str_puts(out, "data: [DONE]\n\n");
}

/* ---- whole answers ---- */

static gm_call *call_at(gm_choice *c, int32_t index)
{
    while (c->n_calls <= index) {
        if (c->n_calls == c->cap_calls) {
            c->cap_calls = c->cap_calls ? 2 * c->cap_calls : 4;
            c->calls = gm_realloc_array(c->calls, (size_t)c->cap_calls, sizeof *c->calls);
        }
        gm_call *k = &c->calls[c->n_calls++];
        *k = (gm_call){0};
        gm_random_hex(k->id, 16);
    }
    return &c->calls[index];
}

static void gather(gm_choice *c)
{
    for (size_t i = 0; i < c->deltas.n; i++) {
        const gm_reply_delta *d = &c->deltas.data[i];
        gm_str *to = d->kind == GM_REPLY_REASONING ? &c->reasoning
                     : d->kind == GM_REPLY_CONTENT ? &c->content
                     : d->kind == GM_REPLY_CALL    ? &call_at(c, d->index)->name
                                                   : &call_at(c, d->index)->args;
        if (d->len) gm_str_append(to, d->text, d->len);
    }
    gm_reply_deltas_clear(&c->deltas);
}

static void put_message(gm_choice *c, gm_str *out)
{
    const gm_job *j = c->job;
    const gm_str *content = c->reply ? &c->content : &c->text;
    gm_str_puts(out, "\"message\":{\"role\":");
    gm_json_put_string(out, j->srv->role, strlen(j->srv->role));
    gm_str_puts(out, ",\"content\":");
    if (c->n_calls && !content->len) gm_str_puts(out, "null");
    else put_text(out, content);
    gm_str_puts(out, ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null");
    if (c->n_calls) gm_str_puts(out, ",\"tool_calls\":[");
    for (int32_t i = 0; i < c->n_calls; i++) {
        gm_str_printf(out, "%s{\"id\":\"chatcmpl-tool-%s\",\"type\":\"function\",\"function\":{\"name\":", i ? "," : "",
                      c->calls[i].id);
        put_text(out, &c->calls[i].name);
        gm_str_puts(out, ",\"arguments\":");
        put_text(out, &c->calls[i].args);
        gm_str_puts(out, "}}");
    }
    if (c->n_calls) gm_str_putc(out, ']');
    gm_str_putc(out, ',');
    if (c->reasoning.len && j->req.include_reasoning) put_reasoning(out, j, gm_str_c(&c->reasoning), c->reasoning.len);
    else gm_str_puts(out, j->srv->p.reasoning_content ? "\"reasoning\":null,\"reasoning_content\":null" : "\"reasoning\":null");
    gm_str_putc(out, '}');
}

static void put_prompt_lp(const gm_choice *c, gm_str *out)
{
    const gm_job *j = c->job;
    const gm_choice *first = &j->choices[c->index - c->index % j->req.n];
    if (j->req.want_prompt_logprobs) gm_str_printf(out, "[null%s]", gm_str_c(&first->prompt_lp));
    else gm_str_puts(out, "null");
}

static void put_text_choice(gm_choice *c, gm_str *out)
{
    const gm_job *j = c->job;
    const gm_ids *p = &j->prompts[c->prompt];
    bool nothing = j->req.has_max_tokens && j->req.max_tokens == 0;
    gm_str text = {0};
    if (j->req.echo) {
        const gm_api_prompt *given = &j->req.prompts[c->prompt];
        if (given->text && !j->req.truncate) gm_str_append(&text, given->text, given->len);
        else gm_tokenizer_decode(j->srv->p.tokenizer, p->data, p->n, j->req.skip_special, &text, NULL);
    }
    if (!nothing) gm_str_append(&text, gm_str_c(&c->text), c->text.len);
    gm_str_printf(out, "{\"index\":%d,\"text\":", (int)c->index);
    put_text(out, &text);
    gm_str_puts(out, ",\"logprobs\":");
    put_lp(j, &c->lp, out);
    gm_str_putc(out, ',');
    put_finish(out, c, true);
    gm_str_puts(out, ",\"stop_reason\":");
    put_stop_reason(out, c);
    put_tokens_field(out, c, true);
    gm_str_puts(out, ",\"prompt_logprobs\":");
    put_prompt_lp(c, out);
    gm_str_puts(out, ",\"prompt_token_ids\":");
    if (j->req.return_token_ids) put_id_list(out, p->data, p->n);
    else gm_str_puts(out, "null");
    gm_str_puts(out, ",\"routed_experts\":null}");
    gm_str_fini(&text);
}

static void put_chat_choice(gm_choice *c, gm_str *out)
{
    gm_str_printf(out, "{\"index\":%d,", (int)c->index);
    put_message(c, out);
    gm_str_puts(out, ",\"logprobs\":");
    put_lp(c->job, &c->lp, out);
    gm_str_putc(out, ',');
    put_finish(out, c, true);
    gm_str_puts(out, ",\"stop_reason\":");
    put_stop_reason(out, c);
    put_tokens_field(out, c, true);
    gm_str_puts(out, ",\"routed_experts\":null}");
}

static void answer_whole(gm_job *j)
{
    gm_str out = {0};
    bool chat = is_chat(j);
    gm_str_puts(&out, "{\"id\":");
    gm_json_put_string(&out, j->id, strlen(j->id));
    gm_str_printf(&out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", chat ? "chat.completion" : "text_completion",
                  (long long)j->created);
    gm_json_put_string(&out, j->srv->names[0], strlen(j->srv->names[0]));
    gm_str_puts(&out, ",\"choices\":[");
    for (int32_t i = 0; i < j->n_choices; i++) {
        if (i) gm_str_putc(&out, ',');
        if (chat) put_chat_choice(&j->choices[i], &out);
        else put_text_choice(&j->choices[i], &out);
    }
    gm_str_puts(&out, "],\"service_tier\":null,\"system_fingerprint\":");
    gm_json_put_string(&out, j->srv->fingerprint, strlen(j->srv->fingerprint));
    gm_str_putc(&out, ',');
    put_usage(&out, j, completion_tokens(j), true);
    if (chat) {
        gm_str_puts(&out, ",\"prompt_logprobs\":");
        put_prompt_lp(&j->choices[0], &out);
        gm_str_puts(&out, ",\"prompt_token_ids\":");
        if (j->req.return_token_ids) put_id_list(&out, j->prompts[0].data, j->prompts[0].n);
        else gm_str_puts(&out, "null");
        gm_str_puts(&out, ",\"prompt_text\":null");
    }
    gm_str_puts(&out, ",\"kv_transfer_params\":null,\"metrics\":null}");
    gm_job_answer(j, 200, &out);
}

/* ---- the writer ---- */

/* One framed error ends a stream; without one it is the answer. */
static void fail_job(gm_job *j, const char *message)
{
    gm_api_fail(&j->error, 500, NULL, "%.900s", message ? message : "The engine failed on this request.");
    j->failed = true;
    gm_warn("request %s failed: %s", j->id, j->error.message);
    if (j->req.stream) {
        gm_str out = {0};
        gm_str_puts(&out, "data: ");
        gm_api_error_put_stream(&j->error, &out);
        gm_str_puts(&out, "\n\ndata: [DONE]\n\n");
        gm_job_stream(j, &out, true);
        gm_str_fini(&out);
    } else {
        gm_job_answer_error(j, &j->error);
    }
    gm_job_cancel(j);
}

static void take_event(gm_job *j, const gm_job_event *e, bool *stopped)
{
    gm_choice *c = &j->choices[e->choice];
    switch (e->kind) {
    case GM_EVENT_TOKENS:
        if (!c->started)
            gm_metrics_observe(&j->srv->metrics, &j->srv->metrics.ttft, 1e-6 * (double)(gm_now_us() - j->arrived_us));
        c->started = true;
        for (int32_t i = 0; i < e->n_tokens && !c->done; i++) take_token(c, e->tokens[i], e->rows ? &e->rows[i] : NULL);
        if (c->done && c->stop_text) *stopped = true;
        break;
    case GM_EVENT_PROMPT_LOGPROBS: take_prompt_rows(c, e); break;
    case GM_EVENT_FINISH:
        if (e->finish == GM_FINISH_ERROR && !c->done) fail_job(j, e->message);
        else take_finish(c, e);
        break;
    }
    c->dirty = true;
}

/* A stop string ended a choice of which the engine knows nothing. */
static void cancel_stopped(gm_job *j)
{
    for (int32_t i = 0; i < j->n_choices; i++) {
        gm_choice *c = &j->choices[i];
        if (!c->stop_text) continue;
        pthread_mutex_lock(&j->lock);
        gm_request_id id = c->engine_done ? 0 : c->id;
        pthread_mutex_unlock(&j->lock);
        if (id) gm_engine_cancel(j->srv->p.engine, id);
    }
}

/* The engine counts a request that a stop string ended as aborted. Done for every FINISH, also after the answer was sent
 * and the client has left. */
static void account(gm_job *j, const gm_job_event *e)
{
    gm_metrics *m = &j->srv->metrics;
    if (e->kind != GM_EVENT_FINISH) return;
    if (j->choices[e->choice].stop_text && e->finish == GM_FINISH_ABORT) gm_metrics_add(m, &m->stop_strings, 1);
}

static void handle(gm_job *j, gm_job_event *list, bool gone)
{
    bool stopped = false, was_open = j->n_open > 0;
    gm_str out = {0};
    for (gm_job_event *e = list; e; e = e->next) {
        if (!gone && !j->failed) take_event(j, e, &stopped);
        account(j, e);
    }
    if (stopped) cancel_stopped(j);
    if (gone || j->failed || !was_open) return;
    for (gm_job_event *e = list; e; e = e->next) {
        gm_choice *c = &j->choices[e->choice];
        if (!c->dirty) continue;
        c->dirty = false;
        if (j->req.stream) flush_choice(c, &out);
        else gather(c);
    }
    if (j->req.stream) {
        if (!j->n_open) put_stream_end(j, &out);
        if (out.len) gm_job_stream(j, &out, !j->n_open);
    } else if (!j->n_open) {
        answer_whole(j);
    }
    gm_str_fini(&out);
}

void gm_job_write(gm_job *j)
{
    for (;;) {
        pthread_mutex_lock(&j->lock);
        gm_job_event *list = j->events;
        bool gone = j->gone;
        bool slow = j->out.len - j->out_pos > GM_STREAM_HIGH && j->streaming && !gone;
        if (!list || slow) {
            j->writer_busy = false;
            j->writer_held = list != NULL;
            pthread_mutex_unlock(&j->lock);
            return;
        }
        j->events = NULL;
        j->events_tail = &j->events;
        pthread_mutex_unlock(&j->lock);
        handle(j, list, gone);
        int finished = 0;
        for (gm_job_event *e = list; e; e = e->next) finished += e->kind == GM_EVENT_FINISH;
        gm_job_events_free(list);
        while (finished--) gm_job_unref(j); /* the queue's own reference keeps j alive here */
    }
}
