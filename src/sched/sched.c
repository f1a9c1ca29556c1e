#include "sched/sched.h"

#include "base/mem.h"

#include <string.h>

struct gm_sched {
    gm_sched_params params;
    gm_kv *kv;
    int32_t watermark_pages;

    gm_request **running; /* [n_running], admission order */
    int32_t n_running;
    gm_request **heap; /* [n_waiting], binary heap: the head of the queue is heap[0] */
    int32_t n_waiting, heap_cap;
    int64_t place_last, place_first; /* FCFS places given out at the end and in front */

    gm_step step;
    int64_t n_preemptions;

    gm_prefix_hits hits;
    struct {
        int32_t queries, hits;
    } recent[GM_PREFIX_WINDOW];
    int32_t recent_at;
};

static gm_status check_params(const gm_sched_params *p, gm_error *err)
{
    if (p->batch_tokens_max < 1 || p->seqs_max < 1 || p->model_len_max < 2 || p->step_rows_max < 0)
        return gm_fail(err, GM_EARG, "scheduler: limits must be positive");
    if (p->batch_tokens_max < p->seqs_max)
        return gm_fail(err, GM_EARG,
                       "max_num_batched_tokens (%d) must be greater than or equal to max_num_seqs (%d).",
                       p->batch_tokens_max, p->seqs_max);
    if (!p->chunked_prefill && p->batch_tokens_max < p->model_len_max)
        return gm_fail(
            err, GM_EARG,
            "max_num_batched_tokens (%d) is smaller than max_model_len (%d). Without chunked prefill a "
            "prompt must fit into one step whole.",
            p->batch_tokens_max, p->model_len_max);
    if (p->long_prefill_threshold < 0 || p->long_prefill_threshold > p->model_len_max)
        return gm_fail(err, GM_EARG,
                       "long_prefill_token_threshold (%d) cannot be greater than the max_model_len (%d).",
                       p->long_prefill_threshold, p->model_len_max);
    if (p->snapshot_interval < 0)
        return gm_fail(err, GM_EARG, "state_snapshot_interval is %d, must be at least 0", p->snapshot_interval);
    if (!(p->watermark >= 0 && p->watermark < 1))
        return gm_fail(err, GM_EARG, "watermark is %g, must be in [0, 1)", p->watermark);
    return GM_OK;
}

gm_status gm_sched_create(gm_sched **out, const gm_sched_params *params, gm_kv *kv, gm_error *err)
{
    gm_status st = check_params(params, err);
    if (st) return st;
    gm_sched *s = gm_try_alloc(1, sizeof *s);
    if (!s) return gm_fail(err, GM_ENOMEM, "scheduler: no memory");
    s->params = *params;
    s->kv = kv;
    s->watermark_pages = (int32_t)(params->watermark * gm_kv_pages_total(kv));

    s->running = gm_try_alloc((size_t)params->seqs_max, sizeof *s->running);
    if (!s->running) {
        st = gm_fail(err, GM_ENOMEM, "scheduler: no memory for %d requests", params->seqs_max);
        goto fail;
    }
    st = gm_step_init(&s->step, params->seqs_max, err);
    if (st) goto fail;
    *out = s;
    return GM_OK;

fail:
    gm_sched_destroy(s);
    return st;
}

void gm_sched_destroy(gm_sched *s)
{
    if (!s) return;
    GM_ASSERT(s->n_running == 0 && s->n_waiting == 0);
    gm_step_fini(&s->step);
    gm_free(s->running);
    gm_free(s->heap);
    gm_free(s);
}

gm_status gm_sched_fits(const gm_sched *s, int32_t n_prompt, int32_t n_tokens_max, gm_error *err)
{
    if (n_prompt >= s->params.model_len_max || n_tokens_max > s->params.model_len_max)
        return gm_fail(err, GM_EARG,
                       "%d prompt tokens and %d to generate are more than the model length of %d", n_prompt,
                       n_tokens_max - n_prompt, s->params.model_len_max);
    int32_t need = gm_kv_pages_for(s->kv, n_tokens_max - 1), have = gm_kv_pages_total(s->kv);
    if (need > have)
        return gm_fail(
            err, GM_EARG,
            "%d prompt tokens and %d to generate need %d pages of %d tokens, the whole cache has %d",
            n_prompt, n_tokens_max - n_prompt, need, gm_kv_page_tokens(s->kv), have);
    return GM_OK;
}

/* ---- the queue: a binary heap in the policy's order, with each request knowing its index ---- */

static bool before(const gm_sched *s, int32_t i, int32_t j)
{
    return gm_policy_before(s->params.policy, s->heap[i], s->heap[j]);
}

static void put(gm_sched *s, int32_t i, gm_request *r)
{
    s->heap[i] = r;
    r->heap_idx = i;
}

static void swap(gm_sched *s, int32_t i, int32_t j)
{
    gm_request *a = s->heap[i];
    put(s, i, s->heap[j]);
    put(s, j, a);
}

static void sift_up(gm_sched *s, int32_t i)
{
    for (; i > 0 && before(s, i, (i - 1) / 2); i = (i - 1) / 2) swap(s, i, (i - 1) / 2);
}

static void sift_down(gm_sched *s, int32_t i)
{
    for (;;) {
        int32_t least = i, left = 2 * i + 1;
        if (left < s->n_waiting && before(s, left, least)) least = left;
        if (left + 1 < s->n_waiting && before(s, left + 1, least)) least = left + 1;
        if (least == i) return;
        swap(s, i, least);
        i = least;
    }
}

static void enqueue(gm_sched *s, gm_request *r)
{
    GM_ASSERT(s->n_waiting < s->heap_cap);
    put(s, s->n_waiting++, r);
    sift_up(s, r->heap_idx);
}

static void dequeue(gm_sched *s, gm_request *r)
{
    int32_t i = r->heap_idx;
    GM_ASSERT(i >= 0 && i < s->n_waiting && s->heap[i] == r);
    r->heap_idx = -1;
    gm_request *last = s->heap[--s->n_waiting];
    if (last == r) return;
    put(s, i, last);
    sift_up(s, i);
    sift_down(s, last->heap_idx);
}

/* Room for every known request, so that preempting one never allocates. */
static void reserve_queue(gm_sched *s)
{
    int32_t known = s->n_running + s->n_waiting + 1;
    if (known <= s->heap_cap) return;
    s->heap_cap = known < 32 ? 64 : 2 * known;
    s->heap = gm_realloc_array(s->heap, (size_t)s->heap_cap, sizeof *s->heap);
}

void gm_sched_add(gm_sched *s, gm_request *r)
{
    GM_ASSERT(r->state == GM_REQUEST_NEW);
    GM_ASSERT(gm_sched_fits(s, r->n_prompt, r->n_tokens_max, NULL) == GM_OK);
    reserve_queue(s);
    r->state = GM_REQUEST_WAITING;
    r->place = ++s->place_last;
    enqueue(s, r);
}

/* ---- the running list ---- */

static void start_running(gm_sched *s, gm_request *r)
{
    r->state = GM_REQUEST_RUNNING;
    r->running_idx = s->n_running;
    s->running[s->n_running++] = r;
}

static void stop_running(gm_sched *s, gm_request *r)
{
    int32_t i = r->running_idx;
    GM_ASSERT(i >= 0 && i < s->n_running && s->running[i] == r);
    s->n_running--;
    for (; i < s->n_running; i++) {
        s->running[i] = s->running[i + 1];
        s->running[i]->running_idx = i;
    }
    r->running_idx = -1;
}

/* ---- a step ---- */

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* The most tokens one request may get in this step. A lone request has nobody to hold up. */
static int32_t chunk_cap(const gm_sched *s)
{
    int32_t threshold = s->params.long_prefill_threshold;
    return threshold == 0 || s->n_running + s->n_waiting <= 1 ? INT32_MAX : threshold;
}

static int32_t budget_left(const gm_sched *s)
{
    return s->params.batch_tokens_max - s->step.n_tokens;
}

static int32_t rows_left(const gm_sched *s)
{
    return s->params.step_rows_max == 0 ? INT32_MAX : s->params.step_rows_max - s->step.n_rows;
}

/* ---- where states are kept (rule 8) ---- */

static bool keeps_states(const gm_sched *s, const gm_request *r)
{
    return r->tokens && gm_kv_prefix_caching(s->kv) && gm_kv_slots_total(s->kv) > 0;
}

/* The last page boundary before the last of n tokens, which is computed in any case. */
static int32_t last_boundary(const gm_sched *s, int32_t n)
{
    int32_t page = gm_kv_page_tokens(s->kv);
    return (n - 1) / page * page;
}

static int32_t interval(const gm_sched *s)
{
    int64_t page = gm_kv_page_tokens(s->kv), n = (s->params.snapshot_interval + page - 1) / page * page;
    return n > INT32_MAX ? 0 : (int32_t)n;
}

static void nearer(int32_t *stop, int32_t at, int32_t than)
{
    if (at > than && at < *stop) *stop = at;
}

/* Tokens until a chunk of the prompt has to end. */
static int32_t to_next_stop(const gm_sched *s, const gm_request *r)
{
    int32_t stop = INT32_MAX, every = interval(s);
    if (!s->params.chunked_prefill || !keeps_states(s, r)) return stop;
    nearer(&stop, last_boundary(s, r->n_prompt), r->computed);
    nearer(&stop, last_boundary(s, r->n_prefill), r->computed);
    nearer(&stop, r->junction, r->computed);
    if (every > 0 && r->computed < INT32_MAX - every) nearer(&stop, (r->computed / every + 1) * every, r->computed);
    return stop == INT32_MAX ? stop : stop - r->computed;
}

static void save_state(gm_sched *s, gm_request *r)
{
    int32_t at = r->computed, every = interval(s), end = last_boundary(s, r->n_prompt);
    if (!keeps_states(s, r) || at % gm_kv_page_tokens(s->kv)) return;
    gm_slot_copy *copy = &s->step.saves[s->step.n_saves];
    bool stays = at == end || at == r->junction, regular = every > 0 && at % every == 0, moves = at > end;
    bool kept = stays && gm_kv_try_snapshot(s->kv, &r->seq, at, GM_SNAPSHOT_STAYS, copy);
    if (!kept && regular) kept = gm_kv_try_snapshot(s->kv, &r->seq, at, GM_SNAPSHOT_REGULAR, copy);
    if (!kept && moves) kept = gm_kv_try_snapshot(s->kv, &r->seq, at, GM_SNAPSHOT_MOVES, copy);
    s->step.n_saves += kept;
}

void gm_sched_commit(gm_sched *s)
{
    for (int32_t i = 0; i < s->step.n_items; i++) {
        gm_request *r = s->step.items[i].request;
        if (!r->tokens) continue;
        gm_kv_share(s->kv, &r->seq, r->salt, r->tokens, r->computed);
        save_state(s, r);
    }
}

void gm_sched_drop_saves(gm_sched *s)
{
    for (int32_t i = 0; i < s->step.n_saves; i++) gm_kv_drop_snapshot(s->kv, s->step.saves[i].to);
    s->step.n_saves = 0;
}

/* 0 is possible: the rows of the step are spent. */
static int32_t cut_to_step(const gm_sched *s, const gm_request *r, int32_t n)
{
    n = min32(n, budget_left(s));
    n = min32(n, to_next_stop(s, r));
    n = min32(n, s->params.model_len_max - 1 - r->computed);
    return gm_request_clip_rows(r, r->computed, n, rows_left(s));
}

static void preempt(gm_sched *s, gm_request *r)
{
    (void)gm_step_drop(&s->step, r);
    gm_kv_release(s->kv, &r->seq);
    stop_running(s, r);
    r->computed = 0;
    r->n_preempted++;
    r->state = GM_REQUEST_PREEMPTED;
    r->place =
        --s->place_first; /* in front; of several in one step the oldest is preempted last, so it leads */
    enqueue(s, r);
    s->step.n_preempted++;
    s->n_preemptions++;
}

/* Pages for n more tokens, taken from others if need be. False when r itself had to go. */
static bool grow_or_preempt(gm_sched *s, gm_request *r, int32_t n)
{
    while (gm_kv_grow(s->kv, &r->seq, r->computed + n) == GM_ECAPACITY) {
        gm_request *victim = s->running[gm_policy_victim(s->params.policy, s->running, s->n_running)];
        preempt(s, victim);
        if (victim == r) return false;
    }
    return true;
}

static void schedule_running(gm_sched *s)
{
    int32_t cap = chunk_cap(s);
    for (int32_t i = 0; i < s->n_running && budget_left(s) > 0;) {
        gm_request *r = s->running[i];
        int32_t n = cut_to_step(s, r, min32(r->n_tokens - r->computed, cap));
        if (n > 0) {
            if (!grow_or_preempt(s, r, n)) return;
            gm_step_push(&s->step, r, n);
        }
        i = r->running_idx + 1; /* a victim may have stood before it */
    }
}

/* Rule 4, the space test; takes what the chunk needs beside what the sequence holds already. */
static bool take_space(gm_sched *s, gm_request *r, int32_t n)
{
    int32_t whole = s->params.reserve_full_prompt ? r->n_tokens : r->computed + n;
    int32_t reserve = gm_kv_pages_for(s->kv, whole) - r->seq.n_pages;
    int32_t spare = s->step.n_items == 0 ? 0 : s->watermark_pages;
    return (int64_t)reserve + spare <= gm_kv_pages_free(s->kv) && gm_kv_take_slot(s->kv, &r->seq) == GM_OK &&
           gm_kv_grow(s->kv, &r->seq, r->computed + n) == GM_OK;
}

/* Rule 7: pins what the request goes on from. */
static void look_up(gm_sched *s, gm_request *r)
{
    int32_t n_matched = 0;
    r->junction = 0;
    if (!r->tokens || r->prompt_rows) return;
    r->computed = gm_kv_resume(s->kv, &r->seq, r->salt, r->tokens, r->n_tokens - 1, &n_matched);
    if (n_matched > r->computed) r->junction = n_matched;
}

static void count_hits(gm_sched *s, gm_request *r, int32_t n_hit)
{
    if (!r->tokens || r->prompt_rows || r->n_preempted || !gm_kv_prefix_caching(s->kv)) return;
    r->n_cached = n_hit;
    s->hits.queries += r->n_tokens;
    s->hits.hits += n_hit;
    s->hits.recent_queries += r->n_tokens - s->recent[s->recent_at].queries;
    s->hits.recent_hits += n_hit - s->recent[s->recent_at].hits;
    s->recent[s->recent_at].queries = r->n_tokens;
    s->recent[s->recent_at].hits = n_hit;
    s->recent_at = (s->recent_at + 1) % GM_PREFIX_WINDOW;
}

/* The chunk an admission would begin with, and its space; 0: not now. */
static int32_t first_chunk(gm_sched *s, gm_request *r, int32_t cap)
{
    int32_t n = min32(r->n_tokens - r->computed, cap);
    if (!s->params.chunked_prefill && n > budget_left(s)) return 0;
    n = cut_to_step(s, r, n);
    return n > 0 && take_space(s, r, n) ? n : 0;
}

static bool admit(gm_sched *s, gm_request *r, int32_t cap, int64_t now_us)
{
    r->n_prefill = r->n_tokens;
    look_up(s, r);
    int32_t n = first_chunk(s, r, cap);
    if (n == 0) {
        gm_kv_release(s->kv, &r->seq);
        r->computed = 0;
        return false;
    }
    dequeue(s, r);
    start_running(s, r);
    if (gm_kv_take_load(&r->seq, &s->step.loads[s->step.n_loads])) s->step.n_loads++;
    count_hits(s, r, r->computed);
    if (r->scheduled_us == 0) r->scheduled_us = now_us;
    gm_step_push(&s->step, r, n);
    return true;
}

static void schedule_waiting(gm_sched *s, int64_t now_us)
{
    int32_t cap = chunk_cap(s);
    while (s->n_waiting > 0 && budget_left(s) > 0 && s->n_running < s->params.seqs_max)
        if (!admit(s, s->heap[0], cap, now_us)) return;
}

static void advance(gm_step *step)
{
    for (int32_t i = 0; i < step->n_items; i++) {
        gm_step_item *it = &step->items[i];
        it->request->computed += it->n.tok;
        it->samples = it->request->computed == it->request->n_tokens;
    }
}

gm_step *gm_sched_step(gm_sched *s, int64_t now_us)
{
    gm_step_clear(&s->step);
    schedule_running(s);
    if (s->step.n_preempted == 0) schedule_waiting(s, now_us);
    if (s->step.n_items == 0 && s->step.n_preempted == 0 && s->n_running == 0 && s->n_waiting > 0)
        s->step.stuck = s->heap[0];
    advance(&s->step);
    return &s->step;
}

void gm_sched_append(gm_sched *s, gm_request *r)
{
    GM_ASSERT(r->state == GM_REQUEST_RUNNING && r->computed == r->n_tokens);
    GM_ASSERT(r->n_tokens < r->n_tokens_max && r->n_tokens < s->params.model_len_max);
    r->n_tokens++;
}

void gm_sched_remove(gm_sched *s, gm_request *r)
{
    GM_ASSERT(r->state != GM_REQUEST_NEW && r->state != GM_REQUEST_DONE);
    if (r->state == GM_REQUEST_RUNNING) stop_running(s, r);
    else dequeue(s, r);
    gm_kv_release(s->kv, &r->seq);
    r->state = GM_REQUEST_DONE;
}

int32_t gm_sched_running(const gm_sched *s)
{
    return s->n_running;
}

int32_t gm_sched_waiting(const gm_sched *s)
{
    return s->n_waiting;
}

int64_t gm_sched_preemptions(const gm_sched *s)
{
    return s->n_preemptions;
}

gm_prefix_hits gm_sched_prefix_hits(const gm_sched *s)
{
    return s->hits;
}

gm_request *gm_sched_any(const gm_sched *s)
{
    if (s->n_running > 0) return s->running[s->n_running - 1];
    return s->n_waiting > 0 ? s->heap[0] : NULL;
}

/* ---- proof ---- */

static gm_status check_running(const gm_sched *s, gm_error *err)
{
    for (int32_t i = 0; i < s->n_running; i++) {
        const gm_request *r = s->running[i];
        if (r->state != GM_REQUEST_RUNNING || r->running_idx != i || r->heap_idx != -1)
            return gm_fail(err, GM_EINTERNAL, "running[%d]: state %d, index %d", i, r->state, r->running_idx);
        if (r->computed < 1 || r->computed > r->n_tokens || r->n_tokens > r->n_tokens_max)
            return gm_fail(err, GM_EINTERNAL, "running[%d]: %d of %d tokens computed, at most %d", i,
                           r->computed, r->n_tokens, r->n_tokens_max);
        if (r->seq.n_pages != gm_kv_pages_for(s->kv, r->computed))
            return gm_fail(err, GM_EINTERNAL, "running[%d]: %d pages for %d tokens", i, r->seq.n_pages,
                           r->computed);
        if ((r->seq.slot.id >= 0) != (gm_kv_slots_total(s->kv) > 0))
            return gm_fail(err, GM_EINTERNAL, "running[%d]: slot %d", i, r->seq.slot.id);
    }
    return GM_OK;
}

static gm_status check_waiting(const gm_sched *s, gm_error *err)
{
    for (int32_t i = 0; i < s->n_waiting; i++) {
        const gm_request *r = s->heap[i];
        if ((r->state != GM_REQUEST_WAITING && r->state != GM_REQUEST_PREEMPTED) || r->heap_idx != i ||
            r->running_idx != -1)
            return gm_fail(err, GM_EINTERNAL, "queue[%d]: state %d, index %d", i, r->state, r->heap_idx);
        if (r->computed || r->seq.n_pages || r->seq.slot.id >= 0)
            return gm_fail(err, GM_EINTERNAL, "queue[%d]: waits and holds space", i);
        if (i > 0 && before(s, i, (i - 1) / 2))
            return gm_fail(err, GM_EINTERNAL, "queue[%d]: out of order", i);
    }
    return GM_OK;
}

gm_status gm_sched_check(const gm_sched *s, gm_error *err)
{
    if (s->n_running > s->params.seqs_max) return gm_fail(err, GM_EINTERNAL, "%d running", s->n_running);
    if (s->step.n_tokens > s->params.batch_tokens_max)
        return gm_fail(err, GM_EINTERNAL, "%d tokens in a step", s->step.n_tokens);
    gm_status st = check_running(s, err);
    return st ? st : check_waiting(s, err);
}
