/* One step: schedule, lay out the batch, forward, rows of logits to events. Nothing here allocates. */
#include "engine/engine_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

bool gm_engine_guard(gm_engine *e, bool on)
{
    bool was = e->guarded;
    if (!e->params.alloc_guard || was == on) return was;
    if (on) gm_alloc_forbid();
    else gm_alloc_permit();
    e->guarded = on;
    return was;
}

static gm_job *job_of(gm_request *r)
{
    return (gm_job *)r;
}

/* ---- batch ---- */

static void add_out(gm_engine *e, gm_batch *b, const gm_step_item *it, int32_t item_idx, int32_t pos,
                    bool samples)
{
    e->out_rows[b->n_out] = b->slices[item_idx].token_begin + pos - it->begin.tok;
    e->outs[b->n_out] = (gm_out_row){.item_idx = item_idx, .pos = {pos}, .samples = samples};
    b->n_out++;
}

static void add_outs(gm_engine *e, gm_batch *b, const gm_step_item *it, int32_t item_idx)
{
    const gm_request *r = it->request;
    int32_t end = it->begin.tok + it->n.tok;
    if (r->prompt_rows) {
        int32_t pos = r->rows_next.tok - 1 > it->begin.tok ? r->rows_next.tok - 1 : it->begin.tok;
        for (; pos < end && pos < r->n_prompt - 1; pos++) add_out(e, b, it, item_idx, pos, false);
    }
    if (it->samples) add_out(e, b, it, item_idx, end - 1, true);
}

static gm_batch lay_out_batch(gm_engine *e, const gm_step *step)
{
    gm_batch b = {
        .token_ids = e->token_ids, .slices = e->slices, .n_slices = step->n_items, .out_rows = e->out_rows};
    for (int32_t i = 0; i < step->n_items; i++) {
        const gm_step_item *it = &step->items[i];
        const gm_kv_seq *seq = &it->request->seq;
        memcpy(e->token_ids + b.n_tokens, job_of(it->request)->tokens + it->begin.tok,
               (size_t)it->n.tok * sizeof *e->token_ids);
        e->slices[i] = (gm_slice){.token_begin = b.n_tokens,
                                  .n = it->n,
                                  .begin = it->begin,
                                  .pages = seq->pages,
                                  .n_pages = seq->n_pages,
                                  .slot = seq->slot};
        add_outs(e, &b, it, i);
        b.n_tokens += it->n.tok;
    }
    return b;
}

/* ---- results ---- */

static void handle_row(gm_engine *e, gm_step *step, const gm_out_row *out, float *logits)
{
    gm_step_item *it = &step->items[out->item_idx];
    if (!it->request) return;
    gm_job *j = job_of(it->request);
    if (!out->samples) {
        gm_engine_prompt_row(e, j, out->pos, logits);
        return;
    }
    gm_engine_flush_rows(e, j);
    if (!gm_engine_sample_row(e, j, logits)) it->request = NULL;
}

/* Rows of the next block overwrite this one, and an event may point into it. */
static void flush_block(gm_engine *e, gm_step *step, int32_t last)
{
    gm_request *r = step->items[e->outs[last].item_idx].request;
    if (r) gm_engine_flush_rows(e, job_of(r));
}

static gm_status deliver(gm_engine *e, gm_step *step, int32_t n_out, gm_error *err)
{
    for (int32_t begin = 0; begin < n_out; begin += e->logits_rows) {
        int32_t n = n_out - begin < e->logits_rows ? n_out - begin : e->logits_rows;
        gm_status st = e->backend->logits(e->backend->self, begin, n, e->logits, err);
        if (st) return st;
        for (int32_t i = 0; i < n; i++) {
            const gm_out_row *out = &e->outs[begin + i];
            if (i > 0 && out->item_idx != out[-1].item_idx) flush_block(e, step, begin + i - 1);
            handle_row(e, step, out, e->logits + (int64_t)i * e->params.vocab_size);
        }
        flush_block(e, step, begin + n - 1);
    }
    return GM_OK;
}

/* ---- failure ---- */

static void declare_dead(gm_engine *e, const gm_error *err)
{
    pthread_mutex_lock(&e->lock);
    e->stats.dead = true;
    size_t len = strnlen(err->message, sizeof e->stats.dead_reason - 1);
    memcpy(e->stats.dead_reason, err->message, len);
    e->stats.dead_reason[len] = 0;
    pthread_mutex_unlock(&e->lock);
    gm_err("engine dead failed_steps=%d: %s", e->n_failures, err->message);
    for (gm_request *r; (r = gm_sched_any(e->sched));)
        gm_engine_end(e, job_of(r), &(gm_ending){GM_FINISH_ERROR, -1, false, err->message});
}

/* The cache of these requests is in doubt, that of others is not: only these end. */
static void fail_step(gm_engine *e, gm_step *step, const gm_error *err)
{
    (void)gm_engine_guard(e, false);
    gm_err("step failed requests=%d tokens=%d: %s", step->n_items, step->n_tokens, err->message);
    for (int32_t i = 0; i < step->n_items; i++)
        if (step->items[i].request)
            gm_engine_end(e, job_of(step->items[i].request),
                          &(gm_ending){GM_FINISH_ERROR, -1, false, err->message});
    if (++e->n_failures >= GM_FAILURES_MAX) declare_dead(e, err);
    (void)gm_engine_guard(e, true);
}

/* ---- the step ---- */

/* A long prompt can take seconds on a slow machine. When every request of the step has been cancelled meanwhile, the
 * rest of the layers is work for nobody. */
typedef struct watch {
    gm_engine *e;
    const gm_step *step;
} watch;

static bool all_cancelled(void *user)
{
    const watch *w = user;
    bool all = true;
    pthread_mutex_lock(&w->e->lock);
    for (int32_t i = 0; all && i < w->step->n_items; i++) all = job_of(w->step->items[i].request)->cancel_queued;
    all |= w->e->cancel_all;
    pthread_mutex_unlock(&w->e->lock);
    return all;
}

static gm_status copy_states(gm_engine *e, const gm_slot_copy *copies, int32_t n, gm_error *err)
{
    return n > 0 ? e->backend->copy_slots(e->backend->self, copies, n, err) : GM_OK;
}

/* What the step computed becomes reusable before its results can end a request. */
static gm_status commit(gm_engine *e, gm_step *step, gm_error *err)
{
    gm_sched_commit(e->sched);
    gm_status st = copy_states(e, step->saves, step->n_saves, err);
    if (st) gm_sched_drop_saves(e->sched);
    return st;
}

static void run_items(gm_engine *e, gm_step *step)
{
    gm_error err = {0};
    watch w = {e, step};
    gm_batch b = lay_out_batch(e, step);
    b.stop = all_cancelled;
    b.stop_user = &w;
    gm_status st = copy_states(e, step->loads, step->n_loads, &err);
    if (!st) st = e->backend->step(e->backend->self, &b, &err);
    if (st == GM_ECANCELED) return; /* the cancels are on the list and end these requests before the next step */
    if (!st) st = commit(e, step, &err);
    if (!st) {
        pthread_mutex_lock(&e->lock);
        gm_stats_step(e, step);
        pthread_mutex_unlock(&e->lock);
        st = deliver(e, step, b.n_out, &err);
    }
    if (!st) {
        e->n_failures = 0;
        return;
    }
    if (!err.message[0]) (void)gm_fail(&err, st, "%s", gm_status_text(st));
    fail_step(e, step, &err);
}

/* Preemption costs all the work done for the victim; an operator should hear of it, though not a thousand
 * times. */
static void warn_preempted(gm_engine *e, const gm_step *step, int64_t now_us)
{
    enum { EVERY_US = 10 * 1000 * 1000 };
    e->n_preempted_unwarned += step->n_preempted;
    if (e->n_preempted_unwarned == 0 || (e->warned_us && now_us - e->warned_us < EVERY_US)) return;
    gm_warn(
        "cache full preempted=%lld preempted_total=%lld running=%d waiting=%d pages_used=%d pages_total=%d",
        (long long)e->n_preempted_unwarned, (long long)gm_sched_preemptions(e->sched),
        gm_sched_running(e->sched), gm_sched_waiting(e->sched),
        gm_kv_pages_total(e->kv) - gm_kv_pages_free(e->kv), gm_kv_pages_total(e->kv));
    e->warned_us = now_us;
    e->n_preempted_unwarned = 0;
}

static void note_begin(gm_engine *e, int64_t now_us)
{
    pthread_mutex_lock(&e->lock);
    e->stats.step_begun_us = now_us;
    pthread_mutex_unlock(&e->lock);
}

static void note_end(gm_engine *e, int64_t now_us)
{
    pthread_mutex_lock(&e->lock);
    gm_stats_gauges(e);
    e->stats.last_step_us = now_us;
    e->stats.step_begun_us = 0;
    pthread_mutex_unlock(&e->lock);
}

void gm_engine_step(gm_engine *e)
{
    (void)gm_engine_guard(e, true);
    int64_t now_us = gm_now_us();
    note_begin(e, now_us);
    gm_step *step = gm_sched_step(e->sched, now_us);
    if (step->n_items > 0) run_items(e, step);
    (void)gm_engine_guard(e, false);

    if (step->stuck)
        gm_engine_end(e, job_of(step->stuck),
                      &(gm_ending){GM_FINISH_ERROR, -1, false, "the scheduler cannot place this request"});
    now_us = gm_now_us();
    note_end(e, now_us);
    warn_preempted(e, step, now_us);
}
