#include "engine/engine_internal.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <errno.h>
#include <time.h>

/* ---- creation ---- */

static gm_status check_params(const gm_engine_params *p, gm_error *err)
{
    if (p->n_eos < 0 || p->n_eos > GM_EOS_MAX) return gm_fail(err, GM_EARG, "engine: %d end ids", p->n_eos);
    if (p->vocab_size < 1 || p->vocab_used < 1 || p->vocab_used > p->vocab_size)
        return gm_fail(err, GM_EARG, "engine: vocabulary of %d, %d used", p->vocab_size, p->vocab_used);
    if (p->queued_reqs_max < -1 || p->queued_tokens_max < -1)
        return gm_fail(err, GM_EARG, "engine: queue limits must be at least 0, or -1 for none");
    return GM_OK;
}

static gm_status make_parts(gm_engine *e, gm_error *err)
{
    const gm_engine_params *p = &e->params;
    gm_kv_params kp = {.page_tokens = p->page_tokens, .n_pages = p->n_pages, .n_slots = p->n_slots, .prefix_caching = p->prefix_caching};
    gm_status st = gm_kv_create(&e->kv, &kp, err);
    if (st) return st;
    gm_sched_params sp = {.batch_tokens_max = p->batch_tokens_max,
                          .seqs_max = p->seqs_max,
                          .model_len_max = p->model_len_max,
                          .long_prefill_threshold = p->long_prefill_threshold,
                          .step_rows_max = GM_STEP_ROWS_MAX,
                          .chunked_prefill = p->chunked_prefill,
                          .reserve_full_prompt = p->reserve_full_prompt,
                          .watermark = p->watermark,
                          .snapshot_interval = p->snapshot_interval,
                          .policy = p->policy};
    st = gm_sched_create(&e->sched, &sp, e->kv, err);
    if (st) return st;
    return gm_sampler_create(&e->sampler, p->vocab_size, p->vocab_used, gm_isa_detect(), err);
}

static gm_status make_arrays(gm_engine *e, gm_error *err)
{
    const gm_engine_params *p = &e->params;
    size_t n_tokens = (size_t)p->batch_tokens_max, row = (size_t)p->vocab_size;
    int64_t fit = GM_LOGITS_BYTES_MAX / ((int64_t)p->vocab_size * (int64_t)sizeof(float));
    e->logits_rows = fit < 1 ? 1 : fit < GM_LOGITS_ROWS_MAX ? (int32_t)fit : GM_LOGITS_ROWS_MAX;
    e->token_ids = gm_try_alloc(n_tokens, sizeof *e->token_ids);
    e->out_rows = gm_try_alloc(n_tokens, sizeof *e->out_rows);
    e->outs = gm_try_alloc(n_tokens, sizeof *e->outs);
    e->slices = gm_try_alloc((size_t)p->seqs_max, sizeof *e->slices);
    e->raw = gm_try_alloc(row, sizeof *e->raw);
    e->logits = gm_try_alloc((size_t)e->logits_rows, row * sizeof *e->logits);
    if (e->token_ids && e->out_rows && e->outs && e->slices && e->raw && e->logits) return GM_OK;
    return gm_fail(err, GM_ENOMEM, "engine: no memory for batches of %d tokens", p->batch_tokens_max);
}

static void init_lock(gm_engine *e)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, &attr);
    pthread_cond_init(&e->rest, &attr);
    pthread_cond_init(&e->reset, &attr);
    pthread_condattr_destroy(&attr);
    e->inbox_end = &e->inbox;
    e->cancels_end = &e->cancels;
    e->lock_ready = true;
}

static void *run(void *arg);

gm_status gm_engine_create(gm_engine **out, const gm_engine_params *p, gm_backend *backend, gm_error *err)
{
    gm_status st = check_params(p, err);
    if (st) return st;
    gm_engine *e = gm_try_alloc(1, sizeof *e);
    if (!e) return gm_fail(err, GM_ENOMEM, "engine: no memory");
    e->params = *p;
    e->backend = backend;
    init_lock(e);

    st = make_parts(e, err);
    if (st) goto fail;
    st = make_arrays(e, err);
    if (st) goto fail;
    gm_stats_init(e);
    if (pthread_create(&e->thread, NULL, run, e)) {
        st = gm_fail(err, GM_ENOMEM, "engine: the thread does not start");
        goto fail;
    }
    e->thread_started = true;
    *out = e;
    return GM_OK;

fail:
    gm_engine_destroy(e);
    return st;
}

static void stop_thread(gm_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->draining = e->cancel_all = e->stopping = true;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
}

void gm_engine_destroy(gm_engine *e)
{
    if (!e) return;
    if (e->thread_started) stop_thread(e);
    gm_free(e->token_ids);
    gm_free(e->out_rows);
    gm_free(e->outs);
    gm_free(e->slices);
    gm_free(e->raw);
    gm_free(e->logits);
    gm_sampler_destroy(e->sampler);
    gm_sched_destroy(e->sched);
    gm_kv_destroy(e->kv);
    if (e->lock_ready) {
        pthread_cond_destroy(&e->work);
        pthread_cond_destroy(&e->rest);
        pthread_cond_destroy(&e->reset);
        pthread_mutex_destroy(&e->lock);
    }
    gm_free(e);
}

/* ---- the table of ids; under the lock ---- */

static gm_job **bucket_of(gm_engine *e, gm_request_id id)
{
    return &e->table[id % GM_JOB_BUCKETS];
}

static void table_put(gm_engine *e, gm_job *j)
{
    gm_job **b = bucket_of(e, j->request.id);
    j->hash_next = *b;
    *b = j;
}

static gm_job **table_find(gm_engine *e, gm_request_id id)
{
    gm_job **p = bucket_of(e, id);
    while (*p && (*p)->request.id != id) p = &(*p)->hash_next;
    return p;
}

/* ---- other threads ---- */

/* Under the lock. */
static gm_status has_room(const gm_engine *e, gm_error *err)
{
    const gm_engine_params *p = &e->params;
    if (e->draining) return gm_fail(err, GM_ECANCELED, "the engine is shutting down");
    if (e->stats.dead) return gm_fail(err, GM_EDEVICE, "the engine is dead: %s", e->stats.dead_reason);
    if (p->queued_reqs_max >= 0 && e->n_live >= p->queued_reqs_max)
        return gm_fail(err, GM_ECAPACITY, "queue full: %d requests in flight, max_num_queued_reqs is %d",
                       e->n_live, p->queued_reqs_max);
    if (p->queued_tokens_max >= 0 && e->queued_tokens >= p->queued_tokens_max)
        return gm_fail(err, GM_ECAPACITY,
                       "queue full: %lld prompt tokens queued, max_num_queued_tokens is %lld",
                       (long long)e->queued_tokens, (long long)p->queued_tokens_max);
    return GM_OK;
}

gm_status gm_engine_has_room(gm_engine *e, gm_error *err)
{
    pthread_mutex_lock(&e->lock);
    gm_status st = has_room(e, err);
    pthread_mutex_unlock(&e->lock);
    return st;
}

/* Take a place in the queue before memory is taken, so that no two requests take the last one. */
static gm_status reserve(gm_engine *e, int32_t n_prompt, gm_error *err)
{
    pthread_mutex_lock(&e->lock);
    gm_status st = has_room(e, err);
    if (!st) {
        e->n_live++;
        e->n_open++;
        e->queued_tokens += n_prompt;
    }
    pthread_mutex_unlock(&e->lock);
    return st;
}

/* Under the lock. */
static void close_one(gm_engine *e)
{
    if (--e->n_open == 0) pthread_cond_broadcast(&e->rest);
}

static void unreserve(gm_engine *e, int32_t n_prompt)
{
    pthread_mutex_lock(&e->lock);
    e->n_live--;
    e->queued_tokens -= n_prompt;
    close_one(e);
    pthread_mutex_unlock(&e->lock);
}

/* Requests with a seed repeat anywhere; those without one each have a stream of their own. */
static uint64_t stream_of(const gm_engine *e, const gm_job *j)
{
    if (j->sampling.has_seed) return gm_mix64((uint64_t)j->sampling.seed, 1);
    return gm_mix64(gm_mix64(e->params.seed, j->request.id), 2);
}

static void push(gm_engine *e, gm_job *j, gm_request_id *id)
{
    pthread_mutex_lock(&e->lock);
    j->request.id = ++e->last_id;
    j->stream = stream_of(e, j);
    if (id) *id = j->request.id;
    table_put(e, j);
    *e->inbox_end = j;
    e->inbox_end = &j->inbox_next;
    e->n_inbox++;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
}

gm_status gm_engine_submit(gm_engine *e, const gm_submit *s, gm_request_id *id, gm_error *err)
{
    int32_t n_prompt = s->n_prompt > 0 ? s->n_prompt : 0;
    gm_status st = reserve(e, n_prompt, err);
    if (st) return st;
    gm_job *j = NULL;
    st = gm_job_create(&j, e, s, err);
    if (st) {
        unreserve(e, n_prompt);
        return st;
    }
    push(e, j, id);
    return GM_OK;
}

void gm_engine_cancel(gm_engine *e, gm_request_id id)
{
    pthread_mutex_lock(&e->lock);
    gm_job *j = *table_find(e, id);
    if (j && !j->cancel_queued) {
        j->cancel_queued = true;
        j->cancel_next = NULL; /* it may have stood on the list before, being ended just now */
        *e->cancels_end = j;
        e->cancels_end = &j->cancel_next;
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
}

static struct timespec deadline_in(double s)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double limit_s = 1e8; /* three years: what does not fit into time_t must not wrap */
    s = s > 0 ? (s < limit_s ? s : limit_s) : 0;
    int64_t ns = t.tv_nsec + (int64_t)((s - (double)(int64_t)s) * 1e9);
    t.tv_sec += (time_t)s + (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

void gm_engine_drain(gm_engine *e, double drain_s)
{
    struct timespec deadline = deadline_in(drain_s);
    pthread_mutex_lock(&e->lock);
    e->draining = true;
    while (e->n_open > 0 && pthread_cond_timedwait(&e->rest, &e->lock, &deadline) != ETIMEDOUT) continue;
    e->cancel_all = true;
    pthread_cond_signal(&e->work);
    while (e->n_open > 0) pthread_cond_wait(&e->rest, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

bool gm_engine_reset_prefix_cache(gm_engine *e, double timeout_s)
{
    struct timespec deadline = deadline_in(timeout_s);
    pthread_mutex_lock(&e->lock);
    int64_t mine = ++e->resets_asked;
    pthread_cond_signal(&e->work);
    int rc = 0;
    while (e->resets_done < mine && !e->stopping && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&e->reset, &e->lock, &deadline);
    bool ok = e->resets_done >= mine && e->reset_ok;
    pthread_mutex_unlock(&e->lock);
    return ok;
}

void gm_engine_stats_get(gm_engine *e, gm_engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->waiting += e->n_inbox;
    pthread_mutex_unlock(&e->lock);
}

/* ---- the engine thread ---- */

void gm_engine_emit(gm_engine *e, gm_job *j, gm_event *ev)
{
    if (!j->sink.fn) return;
    ev->id = j->request.id;
    bool guarded = gm_engine_guard(e, false); /* what the sink does is not the step's work */
    j->sink.fn(j->sink.user, ev);
    (void)gm_engine_guard(e, guarded);
}

/* Everything but the event, so that whoever sees the event sees its effect: counters, free pages, queue room.
 * False where the cancel list still names the job and must free it. */
static bool book_end(gm_engine *e, gm_job *j, gm_finish finish, int64_t now_us)
{
    pthread_mutex_lock(&e->lock);
    gm_job **p = table_find(e, j->request.id);
    GM_ASSERT(*p == j);
    *p = j->hash_next;
    j->done = true;
    e->n_live--;
    if (j->first_token_us == 0) e->queued_tokens -= j->request.n_prompt;
    gm_stats_end(e, j, finish, now_us);
    gm_stats_gauges(e);
    bool ours = !j->cancel_queued;
    pthread_mutex_unlock(&e->lock);
    return ours;
}

void gm_engine_end(gm_engine *e, gm_job *j, const gm_ending *how)
{
    gm_request *r = &j->request;
    int64_t now_us = gm_now_us();
    if (r->state != GM_REQUEST_NEW) gm_sched_remove(e->sched, r);
    gm_event ev = {.kind = GM_EVENT_FINISH,
                   .finish = how->finish,
                   .stop_token = how->stop_token,
                   .stop_is_eos = how->stop_is_eos,
                   .message = how->message,
                   .n_prompt = r->n_prompt,
                   .n_cached = r->n_cached,
                   .n_output = gm_job_n_output(j),
                   .n_preempted = r->n_preempted,
                   .arrived_us = r->arrived_us,
                   .scheduled_us = r->scheduled_us,
                   .first_token_us = j->first_token_us,
                   .finished_us = now_us};
    bool ours = book_end(e, j, how->finish, now_us);
    gm_engine_emit(e, j, &ev);
    if (ours) gm_job_destroy(j);
    pthread_mutex_lock(&e->lock);
    close_one(e);
    pthread_mutex_unlock(&e->lock);
}

typedef struct messages {
    gm_job *submits, *cancels;
    bool cancel_all, stop, dead;
    int64_t resets;
} messages;

static bool has_work(const gm_engine *e)
{
    return gm_sched_running(e->sched) + gm_sched_waiting(e->sched) > 0;
}

/* Blocks while there is nothing to do. */
static messages take_messages(gm_engine *e)
{
    bool busy = has_work(e);
    pthread_mutex_lock(&e->lock);
    while (!busy && !e->inbox && !e->cancels && !e->stopping && e->resets_asked == e->resets_done)
        pthread_cond_wait(&e->work, &e->lock);
    messages m = {e->inbox, e->cancels, e->cancel_all, e->stopping, e->stats.dead, e->resets_asked};
    e->stats.waiting += e->n_inbox;
    e->inbox = e->cancels = NULL;
    e->inbox_end = &e->inbox;
    e->cancels_end = &e->cancels;
    e->n_inbox = 0;
    pthread_mutex_unlock(&e->lock);
    return m;
}

static void take_submits(gm_engine *e, const messages *m)
{
    for (gm_job *j = m->submits, *next; j; j = next) {
        next = j->inbox_next;
        if (m->dead) gm_engine_end(e, j, &(gm_ending){GM_FINISH_ERROR, -1, false, e->stats.dead_reason});
        else gm_sched_add(e->sched, &j->request);
    }
}

static void take_cancels(gm_engine *e, const messages *m)
{
    for (gm_job *j = m->cancels, *next; j; j = next) {
        pthread_mutex_lock(&e->lock);
        next = j->cancel_next;
        bool done = j->done;
        j->cancel_queued = false; /* off the list: who ends it now also frees it */
        pthread_mutex_unlock(&e->lock);
        if (done) gm_job_destroy(j);
        else gm_engine_end(e, j, &(gm_ending){GM_FINISH_ABORT, -1, false, NULL});
    }
}

static void cancel_everything(gm_engine *e)
{
    for (gm_request *r; (r = gm_sched_any(e->sched));)
        gm_engine_end(e, (gm_job *)r, &(gm_ending){GM_FINISH_ABORT, -1, false, NULL});
}

/* Answers all that asked: with what is in the queues it is as if they had asked now. */
static void take_resets(gm_engine *e, const messages *m)
{
    if (m->resets == e->resets_done) return;
    bool ok = gm_kv_reset_prefix(e->kv);
    pthread_mutex_lock(&e->lock);
    e->resets_done = m->resets;
    e->reset_ok = ok;
    gm_stats_gauges(e);
    pthread_cond_broadcast(&e->reset);
    pthread_mutex_unlock(&e->lock);
}

/* With nothing running, every page and slot must be free or cached. */
static void check_at_rest(gm_engine *e)
{
#ifdef NDEBUG
    (void)e;
#else
    GM_ASSERT(gm_kv_check(e->kv, NULL) == GM_OK && gm_sched_check(e->sched, NULL) == GM_OK);
    GM_ASSERT(gm_kv_pages_free(e->kv) == gm_kv_pages_total(e->kv));
    GM_ASSERT(gm_kv_slots_free(e->kv) == gm_kv_slots_total(e->kv));
#endif
}

static void *run(void *arg)
{
    gm_engine *e = arg;
    for (;;) {
        messages m = take_messages(e);
        take_submits(e, &m);
        take_cancels(e, &m);
        if (m.cancel_all) cancel_everything(e);
        take_resets(e, &m);
        if (m.stop && !m.submits && !m.cancels) return NULL;
        if (has_work(e)) gm_engine_step(e);
        else check_at_rest(e);
    }
}
