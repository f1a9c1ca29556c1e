#include "plan/sim.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "sched/repeat.h"

typedef struct rank {
    gm_sched *sched;
    gm_kv *kv;
    gm_step *step;
    bool changed; /* something was added or removed since the step was planned */
} rank;

typedef struct job {
    gm_request r; /* first: a step's item leads back to the job */
    int32_t idx, rank, preempted_seen;
    int64_t ready_ns; /* the front end has done it */
    int64_t last_ns;  /* its last token */
} job;

typedef struct sim {
    const gm_sim_params *p;
    const gm_load *load;
    gm_cost cost;
    rank *ranks;
    gm_rank_load *loads;
    job *jobs;
    int32_t n_ranks, next, in_flight, rotate;
    int32_t queued;        /* requests before it have left the front end */
    int64_t front_free_ns; /* when the front end has done those sent so far */
    int64_t now;
    double waiting_area;
    gm_sim_result *out;
} sim;

/* ---- results ---- */

static void put_gap(gm_sim_result *o, int64_t ns, int64_t n)
{
    if (n == 0) return;
    if (o->n_gaps && o->gaps[o->n_gaps - 1].ns == ns) {
        o->gaps[o->n_gaps - 1].n += n;
        return;
    }
    if (o->n_gaps == o->cap_gaps) {
        o->cap_gaps = o->cap_gaps ? 2 * o->cap_gaps : 1024;
        o->gaps = gm_realloc_array(o->gaps, (size_t)o->cap_gaps, sizeof *o->gaps);
    }
    o->gaps[o->n_gaps++] = (gm_sim_gap){ns, n};
}

static void put_tokens(gm_sim_result *o, int64_t ns, int64_t n)
{
    int64_t s = ns / 1000000000;
    if (s >= o->n_seconds) {
        int64_t cap = s + 1 + s / 2;
        o->second_tokens = gm_realloc_array(o->second_tokens, (size_t)cap, sizeof *o->second_tokens);
        memset(o->second_tokens + o->n_seconds, 0, (size_t)(cap - o->n_seconds) * sizeof *o->second_tokens);
        o->n_seconds = cap;
    }
    o->second_tokens[s] += n;
}

/* ---- the client ---- */

/* The rank with the least waiting and running work; of equal ones the next in turn. */
static int32_t choose_rank(sim *s)
{
    int32_t best = -1, best_score = 0;
    for (int32_t i = 0; i < s->n_ranks; i++) {
        int32_t at = (s->rotate + i) % s->n_ranks;
        int32_t score = 4 * gm_sched_waiting(s->ranks[at].sched) + gm_sched_running(s->ranks[at].sched);
        if (best >= 0 && score >= best_score) continue;
        best = at;
        best_score = score;
    }
    s->rotate = (best + 1) % s->n_ranks;
    return best;
}

/* From the client to the front end. */
static void send_one(sim *s, int64_t sent_ns)
{
    int32_t i = s->next++;
    const gm_load_item *it = &s->load->items[i];
    s->out->requests[i] = (gm_sim_request){.sent_ns = sent_ns, .n_in = it->n_in, .n_out = it->n_out};
    if (s->front_free_ns < sent_ns) s->front_free_ns = sent_ns;
    s->front_free_ns += s->p->front_request_ns + it->n_in * s->p->front_token_ns;
    s->jobs[i].ready_ns = s->front_free_ns;
    s->in_flight++;
}

/* From the front end to a scheduler. */
static gm_status queue_one(sim *s)
{
    int32_t i = s->queued++;
    gm_sim_request *q = &s->out->requests[i];
    job *j = &s->jobs[i];
    j->idx = i;
    j->rank = q->rank = choose_rank(s);
    rank *k = &s->ranks[j->rank];
    int32_t total = q->n_in + q->n_out;
    if (gm_sched_fits(k->sched, q->n_in, total, NULL)) {
        q->failed = true;
        q->first_ns = q->end_ns = j->ready_ns;
        s->in_flight--;
        return GM_OK;
    }
    gm_status st = gm_request_init(&j->r, gm_kv_page_tokens(k->kv), q->n_in,
                                   total + s->out->map.seq_pages * gm_kv_page_tokens(k->kv), NULL);
    if (st) return st;
    j->r.n_tokens_max = total; /* the longer table has room for the pages of state */
    j->r.id = (uint64_t)i;
    j->r.arrived_us = q->sent_ns / 1000;
    gm_sched_add(k->sched, &j->r);
    k->changed = true;
    return GM_OK;
}

static bool may_send(const sim *s)
{
    return s->next < s->load->n && (s->load->concurrency_max == 0 || s->in_flight < s->load->concurrency_max);
}

/* Those whose time has come: at the client, while there is room there, and at the front end. floor_ns: room
 * came then. */
static gm_status move_on(sim *s, int64_t floor_ns)
{
    gm_status st = GM_OK;
    while (may_send(s) && s->load->items[s->next].arrival_ns <= s->now) {
        int64_t at = s->load->items[s->next].arrival_ns;
        send_one(s, at > floor_ns ? at : floor_ns);
    }
    while (!st && s->queued < s->next && s->jobs[s->queued].ready_ns <= s->now) st = queue_one(s);
    return st;
}

/* When something will come to the schedulers from outside, if nothing ends before. */
static int64_t next_event(const sim *s)
{
    int64_t at = s->queued < s->next ? s->jobs[s->queued].ready_ns : INT64_MAX;
    if (may_send(s) && s->load->items[s->next].arrival_ns < at) at = s->load->items[s->next].arrival_ns;
    return at;
}

/* ---- a step ---- */

static void end_request(sim *s, job *j)
{
    rank *k = &s->ranks[j->rank];
    gm_sim_request *q = &s->out->requests[j->idx];
    q->end_ns = s->now;
    q->n_preempted = j->r.n_preempted;
    gm_sched_remove(k->sched, &j->r);
    gm_request_fini(&j->r);
    k->changed = true;
    s->in_flight--;
}

static void take_token(sim *s, job *j)
{
    gm_sim_request *q = &s->out->requests[j->idx];
    if (q->first_ns == 0) q->first_ns = s->now;
    else put_gap(s->out, s->now - j->last_ns, 1);
    j->last_ns = s->now;
    put_tokens(s->out, s->now, 1);
    if (j->r.n_tokens + 1 == j->r.n_tokens_max) end_request(s, j);
    else gm_sched_append(s->ranks[j->rank].sched, &j->r);
}

static void note_events(sim *s, const rank *k)
{
    for (int32_t i = 0; i < k->step->n_items; i++) {
        const gm_step_item *it = &k->step->items[i];
        job *j = (job *)it->request;
        if (it->begin.tok > 0) continue;
        if (j->r.n_preempted > 0) s->out->recomputed += j->r.n_prefill;
        if (s->p->on_event) s->p->on_event(s->p->user, false, j->idx);
    }
    if (!k->step->n_preempted || !s->p->on_event) return;
    for (int32_t i = 0; i < s->queued; i++) {
        job *j = &s->jobs[i];
        if (j->r.state != GM_REQUEST_PREEMPTED || j->r.n_preempted == j->preempted_seen) continue;
        j->preempted_seen = j->r.n_preempted;
        s->p->on_event(s->p->user, true, j->idx);
    }
}

static int64_t price(sim *s)
{
    gm_step_cost parts;
    bool prompt = false;
    double t = gm_cost_step(&s->cost, s->loads, s->n_ranks, &parts);
    for (int32_t i = 0; i < s->n_ranks; i++) prompt |= s->loads[i].tokens > s->loads[i].decodes;
#define X(part, what)                                                                                        \
    s->out->cost.part += parts.part;                                                                         \
    if (!prompt) s->out->cost_decode.part += parts.part;
    GM_COST_PARTS(X)
#undef X
    s->out->steps++;
    s->out->decode_steps += !prompt;
    return s->p->step_ns ? s->p->step_ns : (int64_t)llround(t * 1e9);
}

static void pass_time(sim *s, int64_t dt)
{
    int32_t waiting = 0, running = 0;
    for (int32_t i = 0; i < s->n_ranks; i++) {
        waiting += gm_sched_waiting(s->ranks[i].sched);
        running += gm_sched_running(s->ranks[i].sched);
    }
    if (waiting > s->out->waiting_max) s->out->waiting_max = waiting;
    if (running > s->out->running_max) s->out->running_max = running;
    s->waiting_area += (double)waiting * (double)dt;
    s->now += dt;
}

static void note_pages(sim *s)
{
    for (int32_t i = 0; i < s->n_ranks; i++) {
        double used = 1 - (double)gm_kv_pages_free(s->ranks[i].kv) / gm_kv_pages_total(s->ranks[i].kv);
        if (used > s->out->pages_peak) s->out->pages_peak = used;
    }
}

/* False: nobody has anything to do. */
static bool plan_step(sim *s)
{
    bool any = false;
    for (int32_t i = 0; i < s->n_ranks; i++) {
        rank *k = &s->ranks[i];
        int64_t before = gm_sched_preemptions(k->sched);
        k->step = gm_sched_step(k->sched, s->now / 1000);
        k->changed = false;
        GM_ASSERT(!k->step->stuck); /* requests that could never fit were refused */
        s->out->preemptions += gm_sched_preemptions(k->sched) - before;
        s->loads[i] = (gm_rank_load){0};
        for (int32_t n = 0; n < k->step->n_items; n++) {
            const gm_step_item *it = &k->step->items[n];
            gm_rank_load_add(&s->loads[i], &s->cost, it->begin.tok, it->n.tok, it->samples);
        }
        any |= k->step->n_items > 0 || k->step->n_preempted > 0;
        note_events(s, k);
    }
    note_pages(s);
    return any;
}

static void finish_step(sim *s)
{
    for (int32_t i = 0; i < s->n_ranks; i++) {
        gm_step *step = s->ranks[i].step;
        for (int32_t n = 0; n < step->n_items; n++)
            if (step->items[n].samples) take_token(s, (job *)step->items[n].request);
    }
}

/* How often the planned step repeats unchanged on every rank. */
static int32_t repeats(const sim *s)
{
    int32_t k = INT32_MAX;
    for (int32_t i = 0; i < s->n_ranks && k > 0; i++) {
        const rank *r = &s->ranks[i];
        if (r->changed) return 0;
        int32_t mine = gm_sched_repeats(r->sched, r->kv, r->step);
        if (mine < k) k = mine;
    }
    return k == INT32_MAX ? 0 : k;
}

/* Equal steps at once: only their prices are computed one by one, for they differ as contexts grow. */
static void repeat_steps(sim *s, int32_t most)
{
    int64_t next = next_event(s);
    int32_t k = 0, stride = s->p->price_every > 1 ? s->p->price_every : 1;
    int64_t tokens = 0, dt = 0;
    for (int32_t i = 0; i < s->n_ranks; i++) tokens += s->ranks[i].step->n_items;
    while (k < most && s->now < next) {
        for (int32_t i = 0; i < s->n_ranks && k % stride == 0; i++) {
            const gm_step *step = s->ranks[i].step;
            s->loads[i] = (gm_rank_load){0};
            for (int32_t n = 0; n < step->n_items; n++)
                gm_rank_load_add(&s->loads[i], &s->cost, step->items[n].request->computed + k, 1, true);
        }
        if (k % stride == 0) dt = price(s);
        pass_time(s, dt);
        put_gap(s->out, dt, tokens);
        put_tokens(s->out, s->now, tokens);
        k++;
    }
    for (int32_t i = 0; i < s->n_ranks; i++) {
        rank *r = &s->ranks[i];
        gm_sched_repeat(r->kv, r->step, k);
        for (int32_t n = 0; n < r->step->n_items; n++) ((job *)r->step->items[n].request)->last_ns = s->now;
    }
    note_pages(s);
}

static gm_status prove(sim *s, gm_error *err)
{
    gm_status st = GM_OK;
    for (int32_t i = 0; i < s->n_ranks && !st; i++) {
        st = gm_sched_check(s->ranks[i].sched, err);
        if (!st) st = gm_kv_check(s->ranks[i].kv, err);
    }
    return st;
}

static gm_status run(sim *s, gm_error *err)
{
    gm_status st = move_on(s, 0);
    while (!st) {
        if (!plan_step(s)) {
            int64_t at = next_event(s);
            if (at == INT64_MAX) break;
            if (s->now < at) s->now = at;
            st = move_on(s, 0);
            continue;
        }
        pass_time(s, price(s));
        st = move_on(s, 0);
        finish_step(s); /* what ends makes room at the client from now on */
        if (!st) st = move_on(s, s->now);
        if (!st && s->p->check) st = prove(s, err);
        if (st || s->p->step_by_step) continue;
        int32_t k = repeats(s);
        if (k == 0) continue;
        repeat_steps(s, k);
        st = move_on(s, 0);
        if (!st && s->p->check) st = prove(s, err);
    }
    return st;
}

static gm_status open_ranks(sim *s, const gm_memory_map *map, gm_error *err)
{
    const gm_sim_params *p = s->p;
    gm_sched_params sp = {.batch_tokens_max = p->limits.batch_tokens,
                          .seqs_max = p->limits.seqs,
                          .model_len_max = p->limits.model_len,
                          .long_prefill_threshold = p->long_prefill_threshold,
                          .chunked_prefill = p->chunked_prefill,
                          .reserve_full_prompt = p->reserve_full_prompt,
                          .watermark = p->watermark,
                          .policy = p->policy};
    gm_kv_params kp = {.page_tokens = map->page_tokens,
                       .n_pages = p->n_pages ? p->n_pages : map->n_pages,
                       .n_slots = map->n_slots,
                       .seq_pages = map->seq_pages};
    gm_status st = GM_OK;
    for (int32_t i = 0; i < s->n_ranks && !st; i++) {
        st = gm_kv_create(&s->ranks[i].kv, &kp, err);
        if (!st) st = gm_sched_create(&s->ranks[i].sched, &sp, s->ranks[i].kv, err);
    }
    return st;
}

static void close_ranks(sim *s)
{
    for (int32_t i = 0; i < s->n_ranks; i++) {
        rank *k = &s->ranks[i];
        for (gm_request *r; k->sched && (r = gm_sched_any(k->sched));) {
            gm_sched_remove(k->sched, r);
            gm_request_fini(r);
        }
        gm_sched_destroy(k->sched);
        gm_kv_destroy(k->kv);
    }
    gm_free(s->ranks);
    gm_free(s->loads);
    gm_free(s->jobs);
}

gm_status gm_sim_run(gm_sim_result *out, const gm_model_config *c, const gm_machine *m, const gm_layout *l,
                     const gm_sim_params *p, const gm_load *load, gm_error *err)
{
    gm_sim_result o = {.n = load->n, .map = gm_memory_map_compute(c, m, l, &p->limits)};
    if (o.map.n_pages < 1) {
        char name[64];
        gm_layout_name(l, name, sizeof name);
        return gm_fail(
            err, GM_ECAPACITY,
            "%s on %s: no memory is left for the cache: %.2f GB of %.2f GB a rank go to weights, %.2f GB to "
            "workspace, %.2f GB are the engine's reserve",
            name, m->name, o.map.weights.total / 1e9, o.map.budget / 1e9, o.map.workspace / 1e9,
            o.map.reserve / 1e9);
    }
    o.requests = gm_new_array(gm_sim_request, load->n + 1);
    sim s = {.p = p, .load = load, .n_ranks = l->dp, .out = &o};
    gm_cost_init(&s.cost, c, m, l, &p->limits);
    s.ranks = gm_new_array(rank, l->dp);
    s.loads = gm_new_array(gm_rank_load, l->dp);
    s.jobs = gm_new_array(job, load->n + 1);
    gm_status st = open_ranks(&s, &o.map, err);
    if (!st) st = run(&s, err);
    close_ranks(&s);
    if (st) {
        gm_sim_result_fini(&o);
        return st;
    }
    for (int32_t i = 0; i < o.n; i++)
        if (o.requests[i].end_ns > o.duration_ns) o.duration_ns = o.requests[i].end_ns;
    o.waiting_mean = s.now > 0 ? s.waiting_area / (double)s.now : 0;
    *out = o;
    return GM_OK;
}

void gm_sim_result_fini(gm_sim_result *r)
{
    gm_free(r->requests);
    gm_free(r->gaps);
    gm_free(r->second_tokens);
    memset(r, 0, sizeof *r);
}
