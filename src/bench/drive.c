#include "bench/drive.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/mem.h"
#include "bench/chunk.h"
#include "bench/sse.h"

enum { STARTS_A_TURN = 32, ERROR_BODY_MAX = 1 << 16, PROGRESS_NS = 100000000 };

typedef struct driver driver;

typedef struct flight {
    struct flight *next_free, *next_all;
    driver *d;
    gm_outcome *o;
    gm_sse sse;
    gm_str text, error; /* error: of the stream, or the body of a refusal */
    bool failed, finished, done;
} flight;

struct driver {
    const gm_drive_params *p;
    gm_drive_result *r;
    flight *free, *all;
    size_t sent, arrived, ended;
    int64_t open;
    int64_t *freed_ns; /* ring: when each place under max_concurrency came free */
    size_t freed_at, n_freed;
};

/* ---- one stream ---- */

static void push_gap(gm_outcome *o, int64_t ns)
{
    if (o->n_gaps == o->cap_gaps) {
        o->cap_gaps = o->cap_gaps ? 2 * o->cap_gaps : 64;
        o->gaps = gm_realloc_array(o->gaps, o->cap_gaps, sizeof *o->gaps);
    }
    o->gaps[o->n_gaps++] = (float)((double)ns * 1e-9);
}

static void fail_flight(flight *f, const char *what, size_t len)
{
    if (f->failed) return;
    f->failed = true;
    gm_str_clear(&f->error);
    gm_str_append(&f->error, what, len);
}

static void on_event(void *user, const char *data, size_t len)
{
    flight *f = user;
    gm_outcome *o = f->o;
    gm_chunk c;
    if (f->done || f->failed) return;
    if (len == 6 && !memcmp(data, "[DONE]", 6)) {
        f->done = true;
        return;
    }
    gm_str said = {0};
    if (gm_chunk_read(&c, data, len, &f->text, &said)) {
        gm_str_printf(&said, "the stream holds a message that is not JSON: %.*s", len < 200 ? (int)len : 200,
                      data);
        fail_flight(f, gm_str_c(&said), said.len);
    } else if (c.error) {
        fail_flight(f, said.len ? gm_str_c(&said) : "the stream carries an error", said.len ? said.len : 27);
    }
    gm_str_fini(&said);
    if (f->failed) return;
    if (c.usage) {
        o->usage = c.completion_tokens >= 0;
        if (c.completion_tokens >= 0) o->output_tokens = c.completion_tokens;
        if (c.prompt_tokens >= 0) o->prompt_tokens = c.prompt_tokens;
        if (c.cached_tokens >= 0) o->cached_tokens = c.cached_tokens;
    }
    f->finished |= c.finished;
    bool counts = c.choices && (!f->d->p->body->chat || o->first_ns || c.content || c.finished);
    if (!counts) return;
    int64_t now = gm_client_now_ns();
    f->d->r->n_chunks++;
    if (o->first_ns) push_gap(o, now - o->last_ns);
    else o->first_ns = now;
    o->last_ns = now;
}

static void on_bytes(void *user, long status, const char *bytes, size_t len)
{
    flight *f = user;
    if (status == 200) gm_sse_push(&f->sse, bytes, len);
    else if (f->error.len + len <= ERROR_BODY_MAX) gm_str_append(&f->error, bytes, len);
}

/* "HTTP 404: <message of the body>" */
static void explain_refusal(flight *f, long status)
{
    gm_chunk c;
    gm_str said = {0}, whole = {0};
    size_t n = strspn(gm_str_c(&f->error), " \t\r\n");
    if (gm_chunk_read(&c, gm_str_c(&f->error) + n, f->error.len - n, NULL, &said) || !c.error) {
        gm_str_clear(&said);
        gm_str_append(&said, gm_str_c(&f->error), f->error.len < 300 ? f->error.len : 300);
    }
    gm_str_printf(&whole, "HTTP %ld%s%s", status, said.len ? ": " : "", gm_str_c(&said));
    fail_flight(f, gm_str_c(&whole), whole.len);
    gm_str_fini(&said);
    gm_str_fini(&whole);
}

static void judge(flight *f, long status, const char *error)
{
    char text[512];
    if (error && !f->done) {
        snprintf(text, sizeof text, "%s%s", status == 200 ? "the stream broke off: " : "", error);
        fail_flight(f, text, strlen(text));
    } else if (status != 200) {
        explain_refusal(f, status);
    } else if (!f->o->first_ns) {
        static const char none[] = "the stream ended without a token";
        fail_flight(f, none, sizeof none - 1);
    } else if (!f->done && !f->finished) {
        static const char early[] = "the stream ended early: no finish_reason and no [DONE]";
        fail_flight(f, early, sizeof early - 1);
    }
}

static void count_tokens(flight *f)
{
    gm_outcome *o = f->o;
    const gm_tokenizer *t = f->d->p->tokenizer;
    gm_ids ids = {0};
    if (o->usage) return;
    o->output_tokens = (int64_t)o->n_gaps + 1;
    if (t && !gm_tokenizer_encode(t, gm_str_c(&f->text), f->text.len, GM_ADDED_MATCH, &ids, NULL))
        o->output_tokens = (int64_t)ids.n;
    gm_ids_fini(&ids);
}

static void on_end(void *user, long status, const char *error)
{
    flight *f = user;
    driver *d = f->d;
    gm_sse_finish(&f->sse);
    judge(f, status, error);
    f->o->ok = !f->failed;
    if (f->o->ok) count_tokens(f);
    else f->o->error = gm_strndup(gm_str_c(&f->error), f->error.len);
    if (d->p->keep_text) f->o->text = gm_strndup(gm_str_c(&f->text), f->text.len);
    d->open--;
    d->ended++;
    if (d->p->max_concurrency > 0)
        d->freed_ns[(d->freed_at + d->n_freed++) % (size_t)d->p->max_concurrency] = gm_client_now_ns();
    f->next_free = d->free;
    d->free = f;
}

static flight *flight_take(driver *d)
{
    flight *f = d->free;
    if (f) {
        d->free = f->next_free;
        gm_sse_reset(&f->sse);
        gm_str_clear(&f->text);
        gm_str_clear(&f->error);
        f->failed = f->finished = f->done = false;
    } else {
        f = gm_new(flight);
        f->d = d;
        f->next_all = d->all;
        d->all = f;
        f->sse.on_event = on_event;
        f->sse.user = f;
    }
    return f;
}

/* ---- all of them ---- */

static int64_t arrival_ns(const driver *d, size_t i)
{
    return d->r->begun_ns + (d->p->arrive_s ? (int64_t)(d->p->arrive_s[i] * 1e9) : 0);
}

static void start_next(driver *d)
{
    const gm_drive_params *p = d->p;
    size_t i = d->sent++;
    int64_t due = arrival_ns(d, i);
    if (p->max_concurrency > 0) {
        int64_t freed = d->freed_ns[d->freed_at];
        d->freed_at = (d->freed_at + 1) % (size_t)p->max_concurrency;
        d->n_freed--;
        if (freed > due) due = freed;
    }
    flight *f = flight_take(d);
    gm_outcome *o = f->o = &d->r->outcomes[i];
    gm_str body = {0};
    char id[128];
    gm_body_make(p->body, &p->samples[i], &body);
    snprintf(id, sizeof id, "%s%zu", p->id_prefix, i);
    o->prompt_tokens = p->samples[i].prompt_len > 0 ? p->samples[i].prompt_len : 0;
    o->cached_tokens = -1;
    o->start_ns = gm_client_now_ns();
    o->queued_ns = o->start_ns - arrival_ns(d, i);
    o->late_ns = o->start_ns - due;
    d->open++;
    size_t len = body.len;
    gm_client_start(p->client, &(gm_stream_request){.url = p->url,
                                                    .request_id = id,
                                                    .body = gm_str_take(&body),
                                                    .body_len = len,
                                                    .on_bytes = on_bytes,
                                                    .on_end = on_end,
                                                    .user = f});
}

/* Send what may be sent now, but not so much at once that arriving bytes wait. */
static int64_t start_due(driver *d, int64_t now)
{
    const gm_drive_params *p = d->p;
    while (d->arrived < p->n && arrival_ns(d, d->arrived) <= now) d->arrived++;
    for (int k = 0; k < STARTS_A_TURN; k++) {
        if (d->sent == d->arrived || (p->max_concurrency > 0 && d->open >= p->max_concurrency))
            return d->arrived < p->n ? arrival_ns(d, d->arrived) : now + 1000000000;
        start_next(d);
    }
    return now;
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void driver_fini(driver *d)
{
    while (d->all) {
        flight *f = d->all;
        d->all = f->next_all;
        gm_sse_fini(&f->sse);
        gm_str_fini(&f->text);
        gm_str_fini(&f->error);
        gm_free(f);
    }
    gm_free(d->freed_ns);
}

gm_status gm_drive(gm_drive_result *out, const gm_drive_params *p, gm_error *err)
{
    gm_drive_result r = {.n = p->n, .outcomes = gm_new_array(gm_outcome, p->n)};
    driver d = {.p = p, .r = &r};
    double cpu = cpu_seconds();
    int64_t shown = 0;
    gm_status st = GM_OK;
    gm_client_delay_reset(p->client);
    r.begun_ns = gm_client_now_ns();
    if (p->max_concurrency > 0) {
        d.n_freed = (size_t)p->max_concurrency;
        d.freed_ns = gm_new_array(int64_t, d.n_freed);
        for (size_t i = 0; i < d.n_freed; i++) d.freed_ns[i] = r.begun_ns;
    }
    while (d.ended < p->n) {
        int64_t now = gm_client_now_ns(), until = start_due(&d, now);
        if (p->on_progress && now - shown > PROGRESS_NS) {
            p->on_progress(p->user, d.ended, p->n, (double)(now - r.begun_ns) * 1e-9);
            shown = now;
        }
        if (p->on_progress && until > now + PROGRESS_NS) until = now + PROGRESS_NS;
        gm_client_turn(p->client, until);
        if (p->stop && *p->stop) {
            st = gm_fail(err, GM_ECANCELED, "stopped after %zu of %zu requests", d.ended, p->n);
            break;
        }
    }
    r.ended_ns = gm_client_now_ns();
    r.cpu_s = cpu_seconds() - cpu;
    r.loop = gm_client_delay_get(p->client);
    if (st) {
        gm_client_abort(p->client);
        gm_drive_result_fini(&r);
    } else {
        if (p->on_progress) p->on_progress(p->user, p->n, p->n, (double)(r.ended_ns - r.begun_ns) * 1e-9);
        *out = r;
    }
    driver_fini(&d);
    return st;
}

void gm_drive_result_fini(gm_drive_result *r)
{
    for (size_t i = 0; i < r->n; i++) {
        gm_free(r->outcomes[i].gaps);
        gm_free(r->outcomes[i].text);
        gm_free(r->outcomes[i].error);
    }
    gm_free(r->outcomes);
    *r = (gm_drive_result){0};
}
