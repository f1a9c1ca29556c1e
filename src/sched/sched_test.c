#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "sched/sched.h"

enum { PAGE = 4 };

typedef struct rig {
    gm_kv *kv;
    gm_sched *s;
    gm_step *step;
    int64_t now_us;
    uint64_t last_id;
} rig;

#define PARAMS                                                                                               \
    ((gm_sched_params){.batch_tokens_max = 16,                                                               \
                       .seqs_max = 8,                                                                        \
                       .model_len_max = 64,                                                                  \
                       .chunked_prefill = true,                                                              \
                       .reserve_full_prompt = true})

static rig open_cached(gm_sched_params p, int32_t n_pages, int32_t n_slots)
{
    rig g = {0};
    gm_error err = {0};
    gm_kv_params kp = {.page_tokens = PAGE, .n_pages = n_pages, .n_slots = n_slots, .prefix_caching = true};
    if (gm_kv_create(&g.kv, &kp, &err) || gm_sched_create(&g.s, &p, g.kv, &err)) fail_msg("%s", err.message);
    return g;
}

static rig open_rig(gm_sched_params p, int32_t n_pages, int32_t n_slots)
{
    rig g = {0};
    gm_error err = {0};
    gm_kv_params kp = {.page_tokens = PAGE, .n_pages = n_pages, .n_slots = n_slots};
    if (gm_kv_create(&g.kv, &kp, &err) || gm_sched_create(&g.s, &p, g.kv, &err)) fail_msg("%s", err.message);
    return g;
}

static void check(rig *g)
{
    gm_error err = {0};
    if (gm_kv_check(g->kv, &err) || gm_sched_check(g->s, &err)) fail_msg("%s", err.message);
}

static void close_rig(rig *g)
{
    check(g);
    assert_int_equal(gm_kv_pages_free(g->kv), gm_kv_pages_total(g->kv));
    assert_int_equal(gm_kv_slots_free(g->kv), gm_kv_slots_total(g->kv));
    gm_sched_destroy(g->s);
    gm_kv_destroy(g->kv);
}

static void add(rig *g, gm_request *r, int32_t n_prompt, int32_t n_out, int64_t priority)
{
    assert_int_equal(gm_request_init(r, PAGE, n_prompt, n_prompt + n_out, NULL), GM_OK);
    r->id = ++g->last_id;
    r->arrived_us = (int64_t)r->id;
    r->priority = priority;
    gm_sched_add(g->s, r);
}

static void drop(rig *g, gm_request *r)
{
    if (r->state != GM_REQUEST_DONE) gm_sched_remove(g->s, r);
    gm_request_fini(r);
    check(g);
}

static void step(rig *g)
{
    g->step = gm_sched_step(g->s, ++g->now_us);
    check(g);
}

/* What the engine does after a step: what it computed becomes known; one more token for each that sampled, finished ones leave. */
static void deliver(rig *g)
{
    gm_sched_commit(g->s);
    check(g);
    for (int32_t i = 0; i < g->step->n_items; i++) {
        gm_request *r = g->step->items[i].request;
        if (r->prompt_rows) {
            int32_t done = r->computed < r->n_prompt ? r->computed + 1 : r->n_prompt;
            if (done > r->rows_next.tok) r->rows_next.tok = done;
        }
        if (!g->step->items[i].samples) continue;
        gm_sched_append(g->s, r);
        if (r->n_tokens == r->n_tokens_max) gm_sched_remove(g->s, r);
    }
    check(g);
}

static void expect(const rig *g, int32_t i, const gm_request *r, int32_t begin, int32_t n)
{
    assert_true(i < g->step->n_items);
    const gm_step_item *it = &g->step->items[i];
    assert_int_equal(it->request->id, r->id);
    assert_int_equal(it->begin.tok, begin);
    assert_int_equal(it->n.tok, n);
}

static void running_first_then_waiting_within_budget(void **state)
{
    (void)state;
    rig g = open_rig(PARAMS, 32, 0);
    gm_request a, b, c, d;
    add(&g, &a, 10, 5, 0);
    add(&g, &b, 10, 5, 0);
    add(&g, &c, 3, 5, 0);
    step(&g);
    assert_int_equal(g.step->n_items, 2);
    expect(&g, 0, &a, 0, 10);
    expect(&g, 1, &b, 0, 6);
    assert_true(g.step->items[0].samples);
    assert_false(g.step->items[1].samples);
    assert_int_equal(a.scheduled_us, 1);
    deliver(&g);
    add(&g, &d, 20, 5, 0);
    step(&g);
    assert_int_equal(g.step->n_items, 4);
    expect(&g, 0, &a, 10, 1);
    expect(&g, 1, &b, 6, 4);
    expect(&g, 2, &c, 0, 3);
    expect(&g, 3, &d, 0, 8);
    assert_int_equal(g.step->n_tokens, 16);
    assert_int_equal(c.scheduled_us, 2);
    drop(&g, &a);
    drop(&g, &b);
    drop(&g, &c);
    drop(&g, &d);
    close_rig(&g);
}

static void seqs_max_bounds_running(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.seqs_max = 2;
    rig g = open_rig(p, 32, 0);
    gm_request r[3];
    for (int i = 0; i < 3; i++) add(&g, &r[i], 2, 2, 0);
    step(&g);
    assert_int_equal(g.step->n_items, 2);
    assert_int_equal(gm_sched_waiting(g.s), 1);
    deliver(&g);
    step(&g);
    deliver(&g); /* both have their two tokens: they leave, and the third gets in at once */
    step(&g);
    expect(&g, 0, &r[2], 0, 2);
    for (int i = 0; i < 3; i++) drop(&g, &r[i]);
    close_rig(&g);
}

static void long_prefill_is_cut_unless_alone(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.long_prefill_threshold = 5;
    rig g = open_rig(p, 64, 0);
    gm_request a, b;
    add(&g, &a, 40, 5, 0);
    step(&g);
    expect(&g, 0, &a, 0, 16);
    deliver(&g);
    add(&g, &b, 7, 5, 0);
    step(&g);
    expect(&g, 0, &a, 16, 5);
    expect(&g, 1, &b, 0, 5);
    deliver(&g);
    drop(&g, &b);
    step(&g);
    expect(&g, 0, &a, 21, 16);
    drop(&g, &a);
    close_rig(&g);
}

static void whole_prompts_without_chunking(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.chunked_prefill = false;
    p.model_len_max = 16;
    rig g = open_rig(p, 64, 0);
    gm_request a, b, c;
    add(&g, &a, 10, 5, 0);
    add(&g, &b, 7, 5, 0);
    add(&g, &c, 2, 5, 0); /* would fit, but stands behind b */
    step(&g);
    assert_int_equal(g.step->n_items, 1);
    deliver(&g);
    step(&g);
    assert_int_equal(g.step->n_items, 3);
    expect(&g, 1, &b, 0, 7);
    expect(&g, 2, &c, 0, 2);
    drop(&g, &a);
    drop(&g, &b);
    drop(&g, &c);
    close_rig(&g);

    gm_sched *s = NULL;
    p.model_len_max = 17;
    gm_kv_params kp = {.page_tokens = PAGE, .n_pages = 8};
    gm_kv *kv = NULL;
    assert_int_equal(gm_kv_create(&kv, &kp, NULL), GM_OK);
    assert_int_equal(gm_sched_create(&s, &p, kv, NULL), GM_EARG);
    gm_kv_destroy(kv);
}

/* Three sequences of one full page each in a pool of three: the first to grow takes the last one's page, the
 * second then takes its own. Both wait in front of the newcomer, the older one first. */
static void fcfs_preempts_the_youngest(void **state)
{
    (void)state;
    rig g = open_rig(PARAMS, 3, 3);
    gm_request a, b, c, d;
    add(&g, &a, 4, 6, 0);
    add(&g, &b, 4, 6, 0);
    add(&g, &c, 4, 6, 0);
    step(&g);
    assert_int_equal(g.step->n_items, 3);
    deliver(&g);
    add(&g, &d, 1, 4, 0);
    step(&g);
    assert_int_equal(g.step->n_items, 1);
    expect(&g, 0, &a, 4, 1);
    assert_int_equal(g.step->n_preempted, 2);
    assert_int_equal(c.state, GM_REQUEST_PREEMPTED);
    assert_int_equal(b.state, GM_REQUEST_PREEMPTED);
    assert_int_equal(b.computed, 0);
    assert_int_equal(b.n_tokens, 5);
    assert_int_equal(gm_kv_slots_free(g.kv), 2);
    deliver(&g);
    drop(&g, &a);
    step(&g); /* b needs two pages and c two: b gets in alone, before d */
    assert_int_equal(g.step->n_items, 1);
    expect(&g, 0, &b, 0, 5);
    assert_int_equal(b.n_prefill, 5);
    assert_int_equal(b.scheduled_us, 1);
    deliver(&g);
    drop(&g, &b);
    step(&g);
    expect(&g, 0, &c, 0, 5);
    expect(&g, 1, &d, 0, 1);
    assert_int_equal(gm_sched_preemptions(g.s), 2);
    drop(&g, &c);
    drop(&g, &d);
    close_rig(&g);
}

/* Under priority the victim may have been given tokens in this very step: it gives them back. */
static void priority_victim_gives_back(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.policy = GM_POLICY_PRIORITY;
    rig g = open_rig(p, 4, 0);
    gm_request low, high;
    add(&g, &low, 7, 8, 5);
    step(&g);
    deliver(&g); /* low: 8 tokens, the next one stays within its two pages */
    add(&g, &high, 8, 6, 1);
    step(&g);
    expect(&g, 0, &low, 7, 1);
    expect(&g, 1, &high, 0, 8);
    deliver(&g);
    /* Both are at a page edge and the pool is full. low comes first in the list and is its own victim. */
    step(&g);
    assert_int_equal(low.state, GM_REQUEST_PREEMPTED);
    assert_int_equal(g.step->n_items, 0); /* the running pass ends with it; nobody is admitted */
    step(&g);
    expect(&g, 0, &high, 8, 1);
    drop(&g, &low);
    drop(&g, &high);
    close_rig(&g);

    g = open_rig(p, 4, 0);
    add(&g, &low, 6, 9, 5);
    step(&g);
    deliver(&g);
    add(&g, &high, 8, 6, 1);
    step(&g);
    deliver(
        &g); /* low: 8 tokens of which 7 cached, room for one more; high: 9 tokens, 8 cached, needs a page */
    step(&g);
    assert_int_equal(g.step->n_items, 1);
    expect(&g, 0, &high, 8, 1);
    assert_int_equal(g.step->n_tokens, 1);
    assert_int_equal(low.state, GM_REQUEST_PREEMPTED);
    drop(&g, &low);
    drop(&g, &high);
    close_rig(&g);
}

/* A victim that stands before the one it makes room for: nobody behind is skipped. */
static void victim_in_front_skips_nobody(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.policy = GM_POLICY_PRIORITY;
    rig g = open_rig(p, 5, 5);
    gm_request low, high, mid;
    add(&g, &low, 6, 9, 5);
    step(&g);
    deliver(&g);
    add(&g, &high, 8, 6, 1);
    add(&g, &mid, 2, 6, 3);
    step(&g);
    deliver(&g);
    step(&g);
    assert_int_equal(low.state, GM_REQUEST_PREEMPTED);
    assert_int_equal(g.step->n_items, 2);
    expect(&g, 0, &high, 8, 1);
    expect(&g, 1, &mid, 2, 1);
    drop(&g, &low);
    drop(&g, &high);
    drop(&g, &mid);
    close_rig(&g);
}

/* A chunk of the victim would fit into what is left, but it does not come back in the same step. */
static void preempting_step_admits_nobody(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.reserve_full_prompt = false;
    p.long_prefill_threshold = 4;
    rig g = open_rig(p, 3, 0);
    gm_request a, b;
    add(&g, &a, 4, 6, 0);
    add(&g, &b, 7, 5, 0);
    step(&g);
    deliver(&g); /* a: one full page; b: one page, three tokens of its prompt are left */
    step(&g);    /* a takes the third page; b finds none and goes */
    assert_int_equal(b.state, GM_REQUEST_PREEMPTED);
    assert_int_equal(g.step->n_items, 1);
    assert_int_equal(gm_kv_pages_free(g.kv), 3 - a.seq.n_pages);
    assert_true(gm_kv_pages_free(g.kv) >= 1);
    drop(&g, &a);
    drop(&g, &b);
    close_rig(&g);
}

static void priority_admits_smallest_first(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.policy = GM_POLICY_PRIORITY;
    rig g = open_rig(p, 32, 0);
    gm_request a, b, c;
    add(&g, &a, 2, 2, 3);
    add(&g, &b, 2, 2, -1);
    add(&g, &c, 2, 2, 3);
    step(&g);
    expect(&g, 0, &b, 0, 2);
    expect(&g, 1, &a, 0, 2);
    expect(&g, 2, &c, 0, 2);
    drop(&g, &a);
    drop(&g, &b);
    drop(&g, &c);
    close_rig(&g);
}

static void admission_reserves_the_whole_prompt(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.batch_tokens_max = 8;
    for (int reserve = 0; reserve < 2; reserve++) {
        p.reserve_full_prompt = reserve;
        rig g = open_rig(p, 10, 0);
        gm_request a, b;
        add(&g, &a, 4, 4, 0);
        add(&g, &b, 38, 2, 0); /* ten pages, nine are free */
        step(&g);
        assert_int_equal(g.step->n_items, reserve ? 1 : 2);
        drop(&g, &a);
        step(&g);
        assert_int_equal(b.state, GM_REQUEST_RUNNING);
        drop(&g, &b);
        close_rig(&g);
    }
}

static void watermark_spares_pages_but_not_from_the_first(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.watermark = 0.25; /* 2 of 8 pages */
    rig g = open_rig(p, 8, 0);
    gm_request a, b, c;
    add(&g, &a, 16, 4, 0);
    step(&g);
    deliver(&g);
    add(&g, &b, 8, 4, 0); /* would leave one page: held back */
    step(&g);
    assert_int_equal(g.step->n_items, 1);
    deliver(&g);
    add(&g, &c, 4, 4, 0); /* would leave two, but b is the head */
    step(&g);
    assert_int_equal(gm_sched_waiting(g.s), 2);
    drop(&g, &b);
    step(&g);
    assert_int_equal(c.state, GM_REQUEST_RUNNING);
    drop(&g, &a);
    drop(&g, &c);
    close_rig(&g);

    g = open_rig(p, 8, 0);
    add(&g, &a, 28, 2, 0); /* seven pages; the watermark would forbid it */
    step(&g);
    assert_int_equal(g.step->n_items, 1);
    drop(&g, &a);
    close_rig(&g);
}

static void no_slot_stops_admission(void **state)
{
    (void)state;
    rig g = open_rig(PARAMS, 32, 2);
    gm_request r[3];
    for (int i = 0; i < 3; i++) add(&g, &r[i], 2, 4, 0);
    step(&g);
    assert_int_equal(g.step->n_items, 2);
    assert_true(r[0].seq.slot.id != r[1].seq.slot.id);
    deliver(&g);
    step(&g);
    assert_int_equal(g.step->n_items, 2);
    assert_null(g.step->stuck);
    drop(&g, &r[0]);
    step(&g);
    assert_int_equal(r[2].state, GM_REQUEST_RUNNING);
    drop(&g, &r[1]);
    drop(&g, &r[2]);
    close_rig(&g);
}

static void cancel_in_every_state(void **state)
{
    (void)state;
    rig g = open_rig(PARAMS, 3, 3);
    gm_request a, b, c, d;
    add(&g, &a, 4, 6, 0);
    add(&g, &b, 4, 6, 0);
    add(&g, &c, 2, 6, 0);
    drop(&g, &c); /* waiting */
    step(&g);
    deliver(&g);
    step(&g); /* a takes the third page, b is preempted */
    assert_int_equal(b.state, GM_REQUEST_PREEMPTED);
    drop(&g, &b);
    drop(&g, &a); /* running */
    add(&g, &d, 12, 1, 0);
    gm_step *s = gm_sched_step(g.s, 9);
    assert_int_equal(s->n_items, 1);
    drop(&g, &d); /* in the middle of its prompt or at its end */
    assert_int_equal(gm_sched_running(g.s), 0);
    close_rig(&g);
}

static void what_can_never_run_is_refused(void **state)
{
    (void)state;
    rig g = open_rig(PARAMS, 4, 1);
    gm_error err = {0};
    assert_int_equal(gm_sched_fits(g.s, 16, 17, &err), GM_OK); /* the last token is never stored */
    assert_int_equal(gm_sched_fits(g.s, 16, 18, &err), GM_EARG);
    assert_int_equal(gm_sched_fits(g.s, 64, 65, &err), GM_EARG);
    assert_non_null(err.message);
    gm_request a;
    add(&g, &a, 16, 1, 0);
    step(&g);
    deliver(&g);
    assert_int_equal(a.state, GM_REQUEST_DONE);
    drop(&g, &a);
    close_rig(&g);
}

static void prompt_rows_are_bounded(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.step_rows_max = 5;
    rig g = open_rig(p, 64, 0);
    gm_request a, b, c;
    add(&g, &a, 9, 4, 0);
    add(&g, &b, 6, 4, 0);
    a.prompt_rows = b.prompt_rows = true;
    step(&g);
    assert_int_equal(g.step->n_items, 1); /* no row is left for b */
    expect(&g, 0, &a, 0, 5);
    assert_int_equal(g.step->n_rows, 5);
    deliver(&g);
    add(&g, &c, 5, 4, 0);
    step(&g);
    expect(&g, 0, &a, 5, 4); /* three rows: the last token of a prompt wants none */
    expect(&g, 1, &b, 0, 2);
    expect(&g, 2, &c, 0, 5);
    assert_int_equal(g.step->n_rows, 5);
    deliver(&g);
    step(&g);
    expect(&g, 1, &b, 2, 4);
    deliver(&g);
    drop(&g, &a);
    drop(&g, &b);
    drop(&g, &c);
    close_rig(&g);

    /* Rows that were delivered are not wanted again. */
    gm_request r = {.n_prompt = 10, .prompt_rows = true, .rows_next = {6}};
    assert_int_equal(gm_request_rows(&r, 0, 5), 0);
    assert_int_equal(gm_request_rows(&r, 0, 10), 4);
    assert_int_equal(gm_request_clip_rows(&r, 0, 10, 2), 7);
    assert_int_equal(gm_request_clip_rows(&r, 0, 10, 0), 5);
    assert_int_equal(gm_request_clip_rows(&r, 0, 3, 0), 3);
    assert_int_equal(gm_request_clip_rows(&r, 7, 1, 0), 0);
}

/* A prompt behind decodes that take most of the budget still finishes. */
static void prompt_behind_decodes_finishes(void **state)
{
    (void)state;
    gm_sched_params p = {.batch_tokens_max = 100,
                         .seqs_max = 100,
                         .model_len_max = 400,
                         .chunked_prefill = true,
                         .reserve_full_prompt = true,
                         .long_prefill_threshold = 64};
    rig g = open_rig(p, 4000, 100);
    static gm_request r[91];
    for (int i = 0; i < 90; i++) add(&g, &r[i], 1, 100, 0);
    step(&g);
    deliver(&g);
    add(&g, &r[90], 130, 1, 0);
    int steps = 0;
    while (r[90].state != GM_REQUEST_DONE) {
        step(&g);
        deliver(&g);
        assert_true(++steps <= 13);
    }
    for (int i = 0; i < 91; i++) drop(&g, &r[i]);
    close_rig(&g);
}

/* Far more promised than there is room for: everyone ends, in about the order of arrival, and the work thrown
 * away stays bounded. */
static void nobody_starves(void **state)
{
    (void)state;
    enum { N = 64 };
    for (int policy = 0; policy < 2; policy++) {
        gm_sched_params p = {.batch_tokens_max = 64,
                             .seqs_max = 64,
                             .model_len_max = 64,
                             .chunked_prefill = true,
                             .reserve_full_prompt = true,
                             .policy = policy ? GM_POLICY_PRIORITY : GM_POLICY_FCFS};
        rig g = open_rig(p, N * 16 / 3, N);
        static gm_request r[N];
        for (int i = 0; i < N; i++) add(&g, &r[i], 20, 44, 0);
        int64_t computed = 0, left = N, steps = 0;
        while (left > 0) {
            step(&g);
            computed += g.step->n_tokens;
            assert_true(g.step->n_items > 0);
            deliver(&g);
            left = gm_sched_running(g.s) + gm_sched_waiting(g.s);
            assert_true(++steps < 4000);
        }
        assert_true(computed < (int64_t)N * 63 * 3);
        for (int i = 0; i < N; i++) {
            assert_int_equal(r[i].n_tokens, 64);
            drop(&g, &r[i]);
        }
        close_rig(&g);
    }
}

/* ---- prefix caching ---- */

static int32_t counting[64]; /* 0, 1, 2, ... */

static void add_tokens(rig *g, gm_request *r, const int32_t *tokens, int32_t n_prompt, int32_t n_out)
{
    for (int32_t i = 0; i < 64; i++) counting[i] = i;
    assert_int_equal(gm_request_init(r, PAGE, n_prompt, n_prompt + n_out, NULL), GM_OK);
    r->id = ++g->last_id;
    r->tokens = tokens;
    gm_sched_add(g->s, r);
}

static void run_out(rig *g, gm_request *r)
{
    while (r->state != GM_REQUEST_DONE) {
        step(g);
        deliver(g);
    }
}

/* Without state every page boundary will do; all but the last token may be cached. */
static void goes_on_at_any_page_without_state(void **state)
{
    (void)state;
    rig g = open_cached(PARAMS, 32, 0);
    gm_request a, b, c;
    add_tokens(&g, &a, counting, 13, 5);
    step(&g);
    expect(&g, 0, &a, 0, 13);
    deliver(&g);
    run_out(&g, &a);
    assert_int_equal(a.n_cached, 0);
    add_tokens(&g, &b, counting, 13, 2);
    add_tokens(&g, &c, counting, 12, 2);
    step(&g);
    expect(&g, 0, &b, 12, 1);
    expect(&g, 1, &c, 8, 4);
    assert_true(g.step->items[0].samples && g.step->items[1].samples);
    assert_int_equal(b.n_cached, 12);
    assert_int_equal(c.n_cached, 8);
    assert_int_equal(g.step->n_loads, 0);
    gm_prefix_hits h = gm_sched_prefix_hits(g.s);
    assert_int_equal(h.queries, 38);
    assert_int_equal(h.hits, 20);
    assert_int_equal(h.recent_queries, 38);
    assert_int_equal(h.recent_hits, 20);
    deliver(&g);
    assert_memory_equal(b.seq.pages, c.seq.pages, 3 * sizeof(gm_page)); /* what c computed anew was there */
    drop(&g, &a);
    drop(&g, &b);
    drop(&g, &c);
    close_rig(&g);
}

/* With state: chunks end where states are kept, and a prompt goes on from there. */
static void chunks_end_where_states_are_kept(void **state)
{
    (void)state;
    gm_sched_params p = PARAMS;
    p.batch_tokens_max = 64;
    p.snapshot_interval = 7; /* means 8 */
    rig g = open_cached(p, 64, 16);
    gm_request a, b, c, d, e;
    add_tokens(&g, &a, counting, 22, 1);
    static const int32_t begins[] = {0, 8, 16, 20}, lens[] = {8, 8, 4, 2};
    for (int i = 0; i < 4; i++) {
        step(&g);
        expect(&g, 0, &a, begins[i], lens[i]);
        gm_sched_commit(g.s);
        assert_int_equal(g.step->n_saves, i < 3);
        if (i < 3) assert_int_equal(g.step->saves[0].from.id, a.seq.slot.id);
        for (int32_t k = 0; k < g.step->n_items; k++)
            if (g.step->items[k].samples) gm_sched_append(g.s, &a);
        check(&g);
    }
    drop(&g, &a);
    /* the same prompt: only what lies behind its last page */
    add_tokens(&g, &b, counting, 22, 1);
    step(&g);
    expect(&g, 0, &b, 20, 2);
    assert_int_equal(g.step->n_loads, 1);
    assert_int_equal(g.step->loads[0].to.id, b.seq.slot.id);
    deliver(&g);
    /* it parts from the others in the fourth page: cached pages end at 12, where no state is; one is made there */
    static int32_t other[22];
    for (int32_t i = 0; i < 22; i++) other[i] = i < 14 ? i : 60 - i;
    add_tokens(&g, &c, other, 22, 1);
    step(&g);
    expect(&g, 0, &c, 8, 4);
    deliver(&g);
    step(&g);
    expect(&g, 0, &c, 12, 4);
    deliver(&g);
    run_out(&g, &c);
    static int32_t third[22];
    for (int32_t i = 0; i < 22; i++) third[i] = i < 14 ? i : 40 - i;
    add_tokens(&g, &d, third, 22, 1);
    step(&g);
    expect(&g, 0, &d, 12, 4);
    deliver(&g);
    /* rows of prompt log-probabilities come from no cache */
    assert_int_equal(gm_request_init(&e, PAGE, 22, 23, NULL), GM_OK);
    e.id = ++g.last_id;
    e.tokens = counting;
    e.prompt_rows = true;
    gm_sched_add(g.s, &e);
    step(&g);
    assert_int_equal(e.n_cached, 0);
    assert_int_equal(e.computed, 8);
    drop(&g, &b);
    drop(&g, &c);
    drop(&g, &d);
    drop(&g, &e);
    close_rig(&g);
}

/* Nobody goes on from pages whose step has not run, nor from those of a step that failed. */
static void a_step_shares_nothing_until_it_has_run(void **state)
{
    (void)state;
    rig g = open_cached(PARAMS, 32, 0);
    gm_request a, b, c;
    add_tokens(&g, &a, counting, 8, 2);
    add_tokens(&g, &b, counting, 8, 2);
    step(&g);
    expect(&g, 0, &a, 0, 8);
    expect(&g, 1, &b, 0, 8);
    drop(&g, &a); /* the step failed */
    drop(&g, &b);
    add_tokens(&g, &c, counting, 9, 2);
    step(&g);
    expect(&g, 0, &c, 0, 9);
    drop(&g, &c);
    close_rig(&g);
}

/* A turn leaves the state at its last page boundary, one slot for all of it; the next one goes on there. */
static void the_next_turn_goes_on_at_the_end_of_the_last(void **state)
{
    (void)state;
    rig g = open_cached(PARAMS, 64, 10);
    gm_request a, b, c;
    add_tokens(&g, &a, counting, 9, 20);
    run_out(&g, &a); /* 29 tokens, 28 in the cache: boundaries 8 (the prompt's end), then 12 .. 28 */
    drop(&g, &a);
    assert_int_equal(gm_kv_cached_get(g.kv).snapshots, 2);
    add_tokens(&g, &b, counting, 40, 1);
    step(&g);
    assert_int_equal(b.n_cached, 28);
    deliver(&g);
    run_out(&g, &b);
    drop(&g, &b);
    static int32_t without[30];
    for (int32_t i = 0; i < 30; i++) without[i] = i < 10 ? i : i + 20;
    add_tokens(&g, &c, without, 30, 1); /* the answer was changed: from the end of the prompt */
    step(&g);
    assert_int_equal(c.n_cached, 8);
    drop(&g, &c);
    close_rig(&g);
}

/* A victim's pages stay known until they are taken, so that it goes on where it was. */
static void a_preempted_request_finds_its_own(void **state)
{
    (void)state;
    for (int slots = 0; slots < 9; slots += 8) {
        gm_sched_params p = PARAMS;
        p.batch_tokens_max = 64;
        rig g = open_cached(p, 7, slots);
        gm_request a, b;
        static int32_t other[64];
        for (int32_t i = 0; i < 64; i++) other[i] = 100 + i;
        add_tokens(&g, &a, counting, 8, 12);
        add_tokens(&g, &b, other, 8, 12);
        while (b.state != GM_REQUEST_PREEMPTED) {
            step(&g);
            deliver(&g);
        }
        int32_t had = b.n_tokens;
        while (b.state == GM_REQUEST_PREEMPTED) {
            step(&g);
            if (b.state == GM_REQUEST_PREEMPTED) deliver(&g);
        }
        assert_true(b.computed > 0 && b.n_tokens == had);
        /* the end of what it had was taken, and with it the snapshot there; that of its prompt is left */
        assert_true(g.step->items[0].begin.tok >= (slots ? 4 : 8));
        deliver(&g);
        assert_int_equal(b.n_cached, 0);
        run_out(&g, &b);
        assert_int_equal(b.n_tokens, 20);
        drop(&g, &a);
        drop(&g, &b);
        close_rig(&g);
    }
}

static void failed_saves_are_dropped(void **state)
{
    (void)state;
    rig g = open_cached(PARAMS, 16, 4);
    gm_request a, b;
    add_tokens(&g, &a, counting, 10, 4);
    step(&g);
    expect(&g, 0, &a, 0, 8);
    gm_sched_commit(g.s);
    assert_int_equal(g.step->n_saves, 1);
    gm_sched_drop_saves(g.s);
    check(&g);
    drop(&g, &a);
    add_tokens(&g, &b, counting, 10, 4);
    step(&g);
    assert_int_equal(b.n_cached, 0);
    expect(&g, 0, &b, 0, 8);
    drop(&g, &b);
    close_rig(&g);
}

typedef struct slot_of_load {
    int32_t tokens[64];
    gm_request r;
    bool used;
} slot_of_load;

static void add_random(rig *g, slot_of_load *l, gm_rng *rng, const gm_sched_params *p, int32_t n_pages)
{
    int32_t total_max = n_pages * PAGE + 1 < p->model_len_max ? n_pages * PAGE + 1 : p->model_len_max;
    int32_t total = 2 + (int32_t)gm_rng_below(rng, (uint64_t)total_max - 1);
    int32_t n_prompt = 1 + (int32_t)gm_rng_below(rng, (uint64_t)total - 1);
    assert_int_equal(gm_request_init(&l->r, PAGE, n_prompt, total, NULL), GM_OK);
    l->r.id = ++g->last_id;
    l->r.arrived_us = (int64_t)gm_rng_below(rng, 1000);
    l->r.priority = (int64_t)gm_rng_below(rng, 3);
    l->r.prompt_rows = gm_rng_below(rng, 5) == 0;
    for (int32_t i = 0; i < 64; i++) l->tokens[i] = gm_rng_below(rng, 12) == 0;
    if (gm_rng_below(rng, 8)) l->r.tokens = l->tokens;
    if (gm_rng_below(rng, 6) == 0) l->r.salt = gm_prefix_salt_of("other", 5);
    gm_sched_add(g->s, &l->r);
    l->used = true;
}

static void release(rig *g, slot_of_load *l)
{
    drop(g, &l->r);
    l->used = false;
}

static void random_load(uint64_t seed, int n_ops, bool cached)
{
    enum { N = 12 };
    gm_rng rng;
    gm_rng_init(&rng, seed);
    int32_t n_pages = 6 + (int32_t)gm_rng_below(&rng, 10), n_slots = (int32_t)gm_rng_below(&rng, 6);
    gm_sched_params p = {.seqs_max = 1 + (int32_t)gm_rng_below(&rng, 7), .model_len_max = 40};
    p.batch_tokens_max = p.seqs_max + (int32_t)gm_rng_below(&rng, 12);
    p.chunked_prefill = gm_rng_below(&rng, 4) > 0;
    if (!p.chunked_prefill) p.batch_tokens_max = 40;
    p.long_prefill_threshold = (int32_t)gm_rng_below(&rng, 6);
    p.step_rows_max = (int32_t)gm_rng_below(&rng, 4);
    p.reserve_full_prompt = gm_rng_below(&rng, 2);
    p.watermark = gm_rng_below(&rng, 2) ? 0.2 : 0;
    p.policy = gm_rng_below(&rng, 2) ? GM_POLICY_PRIORITY : GM_POLICY_FCFS;
    p.snapshot_interval = cached ? (int32_t)gm_rng_below(&rng, 20) : 0;
    rig g = cached ? open_cached(p, n_pages, n_slots) : open_rig(p, n_pages, n_slots);
    slot_of_load load[N] = {0};
    int idle = 0;
    for (int op = 0; op < n_ops; op++) {
        slot_of_load *l = &load[gm_rng_below(&rng, N)];
        uint64_t what = gm_rng_below(&rng, 16);
        if (what < 6 && !l->used) add_random(&g, l, &rng, &p, n_pages);
        else if (what == 6 && l->used) release(&g, l);
        step(&g);
        assert_null(g.step->stuck);
        bool known = gm_sched_running(g.s) + gm_sched_waiting(g.s) > 0;
        idle = known && g.step->n_items == 0 ? idle + 1 : 0;
        assert_true(idle < 2); /* a step may only preempt; two in a row may not */
        if (gm_rng_below(&rng, 10) == 0) { /* the step fails: its requests go, and none of it becomes known */
            for (int i = 0; i < N; i++)
                for (int32_t k = 0; k < g.step->n_items && load[i].used; k++)
                    if (g.step->items[k].request == &load[i].r) release(&g, &load[i]);
            gm_step_clear(g.step);
        }
        deliver(&g);
        if (gm_rng_below(&rng, 20) == 0) {
            gm_sched_drop_saves(g.s);
            check(&g);
        }
        if (gm_rng_below(&rng, 100) == 0) (void)gm_kv_reset_prefix(g.kv);
        for (int i = 0; i < N; i++)
            if (load[i].used && load[i].r.state == GM_REQUEST_DONE) release(&g, &load[i]);
    }
    for (int i = 0; i < N; i++)
        if (load[i].used) release(&g, &load[i]);
    close_rig(&g);
}

static void random_operations(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) random_load(seed, 500, false);
    for (uint64_t seed = 0; seed < 300; seed++) random_load(seed, 500, true);
}

static void creation_reports(void **state)
{
    (void)state;
    gm_kv_params kp = {.page_tokens = PAGE, .n_pages = 4};
    gm_kv *kv = NULL;
    gm_sched *s = NULL;
    assert_int_equal(gm_kv_create(&kv, &kp, NULL), GM_OK);
    gm_sched_params p = PARAMS;
    gm_status st = GM_ENOMEM;
    long n = 1;
    for (; st; n++) {
        gm_alloc_fail_at(n);
        st = gm_sched_create(&s, &p, kv, NULL);
        if (st) assert_int_equal(st, GM_ENOMEM);
    }
    gm_alloc_fail_at(0);
    assert_true(n > 3);
    gm_sched_destroy(s);
    gm_request r;
    gm_alloc_fail_at(1);
    assert_int_equal(gm_request_init(&r, PAGE, 2, 4, NULL), GM_ENOMEM);
    gm_alloc_fail_at(0);
    gm_request_fini(&r);

    p.batch_tokens_max = 7; /* below seqs_max */
    assert_int_equal(gm_sched_create(&s, &p, kv, NULL), GM_EARG);
    p = PARAMS;
    p.watermark = 1;
    assert_int_equal(gm_sched_create(&s, &p, kv, NULL), GM_EARG);
    p = PARAMS;
    p.long_prefill_threshold = 65;
    assert_int_equal(gm_sched_create(&s, &p, kv, NULL), GM_EARG);
    gm_kv_destroy(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(running_first_then_waiting_within_budget),
        cmocka_unit_test(seqs_max_bounds_running),
        cmocka_unit_test(long_prefill_is_cut_unless_alone),
        cmocka_unit_test(whole_prompts_without_chunking),
        cmocka_unit_test(fcfs_preempts_the_youngest),
        cmocka_unit_test(priority_victim_gives_back),
        cmocka_unit_test(victim_in_front_skips_nobody),
        cmocka_unit_test(preempting_step_admits_nobody),
        cmocka_unit_test(priority_admits_smallest_first),
        cmocka_unit_test(admission_reserves_the_whole_prompt),
        cmocka_unit_test(watermark_spares_pages_but_not_from_the_first),
        cmocka_unit_test(no_slot_stops_admission),
        cmocka_unit_test(cancel_in_every_state),
        cmocka_unit_test(what_can_never_run_is_refused),
        cmocka_unit_test(prompt_rows_are_bounded),
        cmocka_unit_test(prompt_behind_decodes_finishes),
        cmocka_unit_test(nobody_starves),
        cmocka_unit_test(goes_on_at_any_page_without_state),
        cmocka_unit_test(chunks_end_where_states_are_kept),
        cmocka_unit_test(a_step_shares_nothing_until_it_has_run),
        cmocka_unit_test(the_next_turn_goes_on_at_the_end_of_the_last),
        cmocka_unit_test(a_preempted_request_finds_its_own),
        cmocka_unit_test(failed_saves_are_dropped),
        cmocka_unit_test(random_operations),
        cmocka_unit_test(creation_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
