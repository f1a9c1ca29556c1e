#include "engine/engine_internal.h"

/* Bucket sets of the metrics that vLLM's dashboards read. */
static const double itl_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                    0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double latency_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double step_bounds[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double preempt_bounds[] = {0, 1, 2, 3, 5, 10, 20, 50, 100};

#define SET(h, b) ((h)->bounds = (b), (h)->n_bounds = (int32_t)(sizeof(b) / sizeof(b)[0]))

/* 1, 2, 5, 10, 20, ... up to the model length. */
static int32_t fill_len_bounds(double *bounds, int32_t max)
{
    static const int mantissas[] = {1, 2, 5};
    int32_t n = 0;
    for (int64_t decade = 1;; decade *= 10)
        for (int i = 0; i < 3; i++) {
            if (mantissas[i] * decade > max) return n;
            bounds[n++] = (double)(mantissas[i] * decade);
        }
}

void gm_stats_init(gm_engine *e)
{
    gm_engine_stats *s = &e->stats;
    gm_histogram *latencies[] = {&s->queue_s, &s->prefill_s, &s->decode_s, &s->inference_s, &s->e2e_s};
    gm_histogram *lens[] = {&s->prompt_len, &s->generation_len, &s->max_tokens_param, &s->prefill_computed};
    for (int i = 0; i < 5; i++) SET(latencies[i], latency_bounds);
    int32_t n_len_bounds = fill_len_bounds(e->len_bounds, e->params.model_len_max);
    for (int i = 0; i < 4; i++) {
        lens[i]->bounds = e->len_bounds;
        lens[i]->n_bounds = n_len_bounds;
    }
    SET(&s->itl_s, itl_bounds);
    SET(&s->tpot_s, itl_bounds);
    SET(&s->iteration_tokens, step_bounds);
    SET(&s->preemptions_per_req, preempt_bounds);
    s->pages_total = gm_kv_pages_total(e->kv);
    s->slots_total = gm_kv_slots_total(e->kv);
}

static void observe(gm_histogram *h, double v)
{
    int32_t i = 0;
    while (i < h->n_bounds && v > h->bounds[i]) i++;
    h->counts[i]++;
    h->n++;
    h->sum += v;
}

static void observe_span(gm_histogram *h, int64_t begin_us, int64_t end_us)
{
    observe(h, end_us > begin_us ? (double)(end_us - begin_us) * 1e-6 : 0);
}

void gm_stats_gauges(gm_engine *e)
{
    gm_engine_stats *s = &e->stats;
    s->running = gm_sched_running(e->sched);
    s->waiting = gm_sched_waiting(e->sched);
    s->pages_used = s->pages_total - gm_kv_pages_free(e->kv);
    s->slots_used = s->slots_total - gm_kv_slots_free(e->kv);
    s->preemptions = gm_sched_preemptions(e->sched);
    s->prefix = gm_sched_prefix_hits(e->sched);
    gm_kv_cached c = gm_kv_cached_get(e->kv);
    s->pages_cached = c.pages;
    s->snapshots = c.snapshots;
    s->pages_evicted = c.pages_evicted;
    s->snapshots_taken = c.snapshots_taken;
    s->snapshots_evicted = c.snapshots_evicted;
}

void gm_stats_step(gm_engine *e, const gm_step *step)
{
    gm_engine_stats *s = &e->stats;
    s->steps++;
    observe(&s->iteration_tokens, step->n_tokens);
    for (int32_t i = 0; i < step->n_items; i++) {
        const gm_step_item *it = &step->items[i];
        int32_t left = it->request->n_prefill - it->begin.tok;
        if (left > 0) s->computed_prompt_tokens += left < it->n.tok ? left : it->n.tok;
    }
    gm_stats_gauges(e);
}

void gm_stats_token(gm_engine *e, gm_job *j, int64_t now_us)
{
    gm_engine_stats *s = &e->stats;
    s->generation_tokens++;
    if (j->first_token_us == 0) {
        j->first_token_us = now_us;
        s->prompt_tokens += j->request.n_prompt;
        s->cached_prompt_tokens += j->request.n_cached;
        e->queued_tokens -= j->request.n_prompt;
    } else {
        observe_span(&s->itl_s, j->last_token_us, now_us);
    }
    j->last_token_us = now_us;
}

void gm_stats_end(gm_engine *e, const gm_job *j, gm_finish finish, int64_t now_us)
{
    gm_engine_stats *s = &e->stats;
    const gm_request *r = &j->request;
    int32_t n_output = gm_job_n_output(j);
    s->finished[finish]++;
    observe_span(&s->e2e_s, r->arrived_us, now_us);
    observe(&s->prompt_len, r->n_prompt);
    observe(&s->generation_len, n_output);
    observe(&s->max_tokens_param, j->sampling.max_tokens);
    observe(&s->preemptions_per_req, r->n_preempted);
    if (r->scheduled_us) {
        observe_span(&s->queue_s, r->arrived_us, r->scheduled_us);
        observe(&s->prefill_computed, r->n_prompt - r->n_cached);
    }
    if (j->first_token_us) {
        observe_span(&s->prefill_s, r->scheduled_us, j->first_token_us);
        observe_span(&s->decode_s, j->first_token_us, j->last_token_us);
        observe_span(&s->inference_s, r->scheduled_us, j->last_token_us);
    }
    if (n_output > 1) {
        double span_s = (double)(j->last_token_us - j->first_token_us) * 1e-6;
        observe(&s->tpot_s, span_s / (n_output - 1));
    }
}
