#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"

enum { VOCAB = 96, USED = 90, END = 80, PAGE = 4, SCRIPTS = 64, SCRIPT_LEN = 40, OUT_MAX = 256 };

/* ---- what a client sees ---- */

typedef struct client {
    pthread_mutex_t lock;
    pthread_cond_t done;
    gm_request_id id, event_id;
    int32_t tokens[OUT_MAX], n;
    int32_t n_finish, n_late; /* FINISH events, and events after the first of them */
    gm_event end;
    char message[256];
    int32_t n_rows, next_row, rows_wrong; /* prompt log-probability rows, which must come in order */
    int32_t row_tokens[OUT_MAX];
    float row_sum; /* of the last row's probabilities */
    gm_logprob_row last;
    int32_t top_ids[VOCAB];
    float top_values[VOCAB];
    gm_engine *cancel_on; /* cancel at this many tokens, from inside the sink */
    int32_t cancel_at;
} client;

static void client_init(client *c)
{
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->done, NULL);
    c->next_row = 1;
}

static void keep_row(client *c, const gm_logprob_row *row)
{
    c->last = *row;
    c->row_sum = 0;
    for (int32_t i = 0; i < row->n_top; i++) {
        c->row_sum += expf(row->top_logprobs[i]);
        c->top_values[i] = row->top_logprobs[i];
        c->top_ids[i] = row->top_ids ? row->top_ids[i] : i;
    }
}

static void on_event(void *user, const gm_event *ev)
{
    client *c = user;
    pthread_mutex_lock(&c->lock);
    c->event_id = ev->id;
    c->n_late += c->n_finish > 0;
    if (ev->kind == GM_EVENT_TOKENS) {
        for (int32_t i = 0; i < ev->n_tokens && c->n < OUT_MAX; i++) c->tokens[c->n++] = ev->tokens[i];
        if (ev->logprobs) keep_row(c, &ev->logprobs[0]);
    } else if (ev->kind == GM_EVENT_PROMPT_LOGPROBS) {
        c->rows_wrong += ev->row_begin != c->next_row || ev->n_rows < 1;
        for (int32_t i = 0; i < ev->n_rows && c->n_rows < OUT_MAX; i++) {
            c->row_tokens[c->n_rows++] = ev->rows[i].token;
            keep_row(c, &ev->rows[i]);
        }
        c->next_row = ev->row_begin + ev->n_rows;
    } else {
        c->n_finish++;
        c->end = *ev;
        if (ev->message) memcpy(c->message, ev->message, strnlen(ev->message, sizeof c->message - 1));
        pthread_cond_broadcast(&c->done);
    }
    bool cancel = ev->kind == GM_EVENT_TOKENS && c->cancel_on && c->n == c->cancel_at;
    pthread_mutex_unlock(&c->lock);
    if (cancel) gm_engine_cancel(c->cancel_on, ev->id);
}

static void client_wait(client *c)
{
    pthread_mutex_lock(&c->lock);
    while (!c->n_finish) pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
    assert_int_equal(c->n_finish, 1);
    assert_int_equal(c->n_late, 0);
}

static int32_t client_tokens(client *c)
{
    pthread_mutex_lock(&c->lock);
    int32_t n = c->n;
    pthread_mutex_unlock(&c->lock);
    return n;
}

/* ---- an engine over scripts ---- */

typedef struct rig {
    gm_scripted *s;
    gm_backend backend;
    gm_engine *e; /* borrows backend: the rig must not move */
} rig;

static int32_t script_tokens[SCRIPTS][SCRIPT_LEN];

/* Script tokens lie in 10 .. 79, prompt tokens below 10 but for the first, which is the script's number. */
static gm_scripted *make_scripted(const gm_engine_params *p)
{
    gm_script scripts[SCRIPTS];
    for (int32_t i = 0; i < SCRIPTS; i++) {
        for (int32_t k = 0; k < SCRIPT_LEN; k++) script_tokens[i][k] = 10 + (i * 13 + k * 7 + k * k * 3) % 70;
        scripts[i] = (gm_script){script_tokens[i], SCRIPT_LEN};
    }
    return gm_scripted_create(scripts, SCRIPTS, VOCAB, END, p->page_tokens, p->n_pages, p->n_slots);
}

static gm_engine_params params(void)
{
    return (gm_engine_params){.eos = {END, 81},
                              .n_eos = 2,
                              .vocab_size = VOCAB,
                              .vocab_used = USED,
                              .model_len_max = 128,
                              .batch_tokens_max = 64,
                              .seqs_max = 64,
                              .chunked_prefill = true,
                              .reserve_full_prompt = true,
                              .queued_reqs_max = -1,
                              .queued_tokens_max = -1,
                              .page_tokens = PAGE,
                              .n_pages = 2048,
                              .n_slots = 64,
                              .prefix_caching = true,
                              .snapshot_interval = 8,
                              .seed = 5,
                              .alloc_guard = true};
}

static void prepare(rig *r, gm_engine_params p)
{
    *r = (rig){.s = make_scripted(&p)};
    r->backend = gm_scripted_backend(r->s);
}

static void start(rig *r, gm_engine_params p)
{
    prepare(r, p);
    gm_error err = {0};
    if (gm_engine_create(&r->e, &p, &r->backend, &err)) fail_msg("%s", err.message);
}

/* At rest nothing is held and nothing is left: no gauge went below or stayed above zero. */
static void stop(rig *r)
{
    gm_engine_stats st;
    gm_engine_stats_get(r->e, &st);
    assert_int_equal(st.running, 0);
    assert_int_equal(st.waiting, 0);
    assert_int_equal(st.pages_used, 0);
    assert_int_equal(st.slots_used, 0);
    gm_engine_destroy(r->e);
    gm_scripted_destroy(r->s);
}

static int32_t fill_prompt(int32_t *prompt, int32_t script, int32_t n)
{
    prompt[0] = script;
    for (int32_t i = 1; i < n; i++) prompt[i] = (script + i * 3) % 10;
    return n;
}

static gm_sampling greedy(int32_t max_tokens)
{
    gm_sampling s = GM_SAMPLING_DEFAULT;
    s.temperature = 0;
    s.max_tokens = max_tokens;
    return s;
}

static gm_status try_submit(rig *r, client *c, int32_t script, int32_t n_prompt, gm_sampling s, gm_error *err)
{
    int32_t prompt[OUT_MAX];
    client_init(c);
    gm_submit sub = {.prompt = prompt,
                     .n_prompt = fill_prompt(prompt, script, n_prompt),
                     .sampling = s,
                     .sink = {on_event, c}};
    return gm_engine_submit(r->e, &sub, &c->id, err);
}

static void submit(rig *r, client *c, int32_t script, int32_t n_prompt, gm_sampling s)
{
    gm_error err = {0};
    if (try_submit(r, c, script, n_prompt, s, &err)) fail_msg("%s", err.message);
}

static void sleep_ms(int ms)
{
    struct timespec t = {.tv_nsec = ms * 1000000L};
    (void)nanosleep(&t, NULL);
}

static void expect_script(const client *c, int32_t script, int32_t n)
{
    for (int32_t i = 0; i < n; i++) assert_int_equal(c->tokens[i], script_tokens[script][i]);
}

/* ---- tests ---- */

static void follows_the_script_to_its_end(void **state)
{
    (void)state;
    rig r;
    start(&r, params());
    client c;
    submit(&r, &c, 3, 9, greedy(100));
    client_wait(&c);
    assert_int_equal(c.id, c.event_id);
    assert_int_equal(c.n, SCRIPT_LEN + 1);
    expect_script(&c, 3, SCRIPT_LEN);
    assert_int_equal(c.tokens[SCRIPT_LEN], END);
    assert_int_equal(c.end.finish, GM_FINISH_STOP);
    assert_true(c.end.stop_is_eos);
    assert_int_equal(c.end.stop_token, END);
    assert_int_equal(c.end.n_prompt, 9);
    assert_int_equal(c.end.n_output, SCRIPT_LEN + 1);
    assert_true(c.end.arrived_us > 0 && c.end.scheduled_us >= c.end.arrived_us);
    assert_true(c.end.first_token_us >= c.end.scheduled_us && c.end.finished_us >= c.end.first_token_us);
    stop(&r);
}

static void lengths_are_exact(void **state)
{
    (void)state;
    for (int32_t max = 1; max <= 3; max++) {
        rig r;
        start(&r, params());
        client c;
        submit(&r, &c, 5, 4, greedy(max));
        client_wait(&c);
        assert_int_equal(c.n, max);
        assert_int_equal(c.end.finish, GM_FINISH_LENGTH);
        assert_int_equal(c.end.stop_token, -1);
        gm_engine_drain(r.e, 1);
        assert_int_equal(gm_scripted_steps(r.s), max); /* and not one step more */
        stop(&r);
    }
    /* The model length cuts what max_tokens would allow: prompt and output fill it. */
    gm_engine_params p = params();
    p.model_len_max = 20;
    rig r;
    start(&r, p);
    client c;
    submit(&r, &c, 5, 19, greedy(1));
    client_wait(&c);
    assert_int_equal(c.n, 1);
    submit(&r, &c, 5, 12, greedy(1000000));
    client_wait(&c);
    assert_int_equal(c.n, 8);
    assert_int_equal(c.end.finish, GM_FINISH_LENGTH);
    stop(&r);
}

static void stop_rules(void **state)
{
    (void)state;
    rig r;
    start(&r, params());
    client c;
    gm_sampling s = greedy(60);
    int32_t stop_id = script_tokens[7][4];
    s.stop_token_ids = &stop_id;
    s.n_stop_token_ids = 1;
    submit(&r, &c, 7, 3, s);
    client_wait(&c);
    assert_int_equal(c.n, 5);
    assert_int_equal(c.end.finish, GM_FINISH_STOP);
    assert_int_equal(c.end.stop_token, stop_id);
    assert_false(c.end.stop_is_eos);

    s.min_tokens = 6; /* the stop id is masked at its place, so another token stands there */
    submit(&r, &c, 7, 3, s);
    client_wait(&c);
    assert_true(c.n > 5);
    assert_int_not_equal(c.tokens[4], stop_id);

    s = greedy(60);
    s.ignore_eos = true;
    submit(&r, &c, 7, 3, s);
    client_wait(&c);
    assert_int_equal(c.n, 60);
    assert_int_equal(c.tokens[59], END);
    assert_int_equal(c.end.finish, GM_FINISH_LENGTH);

    s = greedy(60);
    s.min_tokens = 50;
    submit(&r, &c, 7, 3, s);
    client_wait(&c);
    assert_true(c.n >= 50);
    for (int32_t i = 0; i < 50; i++) assert_int_not_equal(c.tokens[i], END);
    stop(&r);
}

static void sampling_fields(void **state)
{
    (void)state;
    rig r;
    start(&r, params());
    client c;
    gm_sampling s = greedy(6);
    s.think_budget = 3;
    s.think_end = 85;
    submit(&r, &c, 2, 4, s);
    client_wait(&c);
    expect_script(&c, 2, 3);
    assert_int_equal(c.tokens[3], 85);
    assert_int_equal(c.tokens[4], script_tokens[2][4]);
    s.think_budget = 0;
    submit(&r, &c, 2, 4, s);
    client_wait(&c);
    assert_int_equal(c.tokens[0], 85);

    s = greedy(4);
    const int32_t allowed[] = {1, 2};
    s.allowed_ids = allowed;
    s.n_allowed = 2;
    submit(&r, &c, 2, 4, s);
    client_wait(&c);
    for (int i = 0; i < 4; i++) assert_true(c.tokens[i] == 1 || c.tokens[i] == 2);

    s = greedy(4);
    const int32_t bias_id = 33;
    const float bias = 100;
    s.bias_ids = &bias_id;
    s.bias_values = &bias;
    s.n_bias = 1;
    submit(&r, &c, 2, 4, s);
    client_wait(&c);
    assert_int_equal(c.tokens[0], 33);

    s = greedy(4);
    const int32_t bad[] = {script_tokens[2][0], script_tokens[2][1]}, bad_len = 2;
    s.bad_ids = bad;
    s.bad_lens = &bad_len;
    s.n_bad = 1;
    submit(&r, &c, 2, 4, s);
    client_wait(&c);
    assert_int_equal(c.tokens[0], script_tokens[2][0]);
    assert_int_not_equal(c.tokens[1], script_tokens[2][1]);

    const int32_t padding = USED; /* allowed, but without text: nothing is left */
    s = greedy(4);
    s.allowed_ids = &padding;
    s.n_allowed = 1;
    submit(&r, &c, 2, 4, s);
    client_wait(&c);
    assert_int_equal(c.end.finish, GM_FINISH_ERROR);
    assert_true(strstr(c.message, "no token") != NULL);
    stop(&r);
}

/* 64 requests in a pool for a third of them: each output has its full length and equals the run alone, greedy
 * and sampled with penalties alike. */
static void pressure_changes_no_output(void **state)
{
    (void)state;
    static client alone[SCRIPTS], crowd[SCRIPTS];
    static const int32_t slots[] = {64, 0, 40}; /* one each, no state, fewer than could run */
    for (int kind = 0; kind < 3; kind++) {
        gm_engine_params p = params();
        p.n_pages = SCRIPTS * (50 + PAGE) / PAGE / 3;
        p.n_slots = slots[kind];
        p.policy = kind == 2 ? GM_POLICY_PRIORITY : GM_POLICY_FCFS;
        p.batch_tokens_max = 70;
        p.long_prefill_threshold = 7;
        rig r;
        start(&r, p);
        gm_scripted_set_margin(r.s, kind == 1 ? 0 : 20.0f); /* 0: noise alone, by position */
        for (int round = 0; round < 2; round++) {
            client *c = round ? crowd : alone;
            gm_scripted_set_step_us(r.s, round ? 50000 : 0); /* until all are in */
            for (int32_t i = 0; i < SCRIPTS; i++) {
                gm_sampling s = greedy(38);
                s.ignore_eos = true;
                s.has_seed = true;
                s.seed = i;
                if (kind == 1) {
                    s.temperature = 0.8f;
                    s.repetition_penalty = 1.1f;
                    s.frequency_penalty = 0.2f;
                    s.presence_penalty = 0.1f;
                    s.top_p = 0.95f;
                }
                submit(&r, &c[i], i, 12, s);
                if (!round) client_wait(&c[i]);
            }
            gm_scripted_set_step_us(r.s, 0);
            for (int32_t i = 0; i < SCRIPTS; i++) client_wait(&c[i]);
        }
        for (int32_t i = 0; i < SCRIPTS; i++) {
            assert_int_equal(crowd[i].n, 38);
            assert_int_equal(crowd[i].end.finish, GM_FINISH_LENGTH);
            if (kind != 1) expect_script(&crowd[i], i, 38);
            assert_memory_equal(crowd[i].tokens, alone[i].tokens, 38 * sizeof(int32_t));
        }
        gm_engine_stats st;
        gm_engine_stats_get(r.e, &st);
        assert_true(st.preemptions > 0);
        assert_true(st.computed_prompt_tokens > 2 * SCRIPTS * 12);
        assert_int_equal(st.prompt_tokens, 2 * SCRIPTS * 12);
        assert_int_equal(st.generation_tokens, 2 * SCRIPTS * 38);
        assert_int_equal(st.preemptions_per_req.n, 2 * SCRIPTS);
        assert_true(st.preemptions_per_req.sum == (double)st.preemptions);
        stop(&r);
    }
}

static void seeds(void **state)
{
    (void)state;
    rig r;
    start(&r, params());
    gm_scripted_set_margin(r.s, 0);
    static client c[10];
    gm_sampling s = GM_SAMPLING_DEFAULT;
    s.max_tokens = 16;
    s.ignore_eos = true;
    for (int i = 0; i < 8; i++) submit(&r, &c[i], 1, 4, s);
    s.has_seed = true;
    s.seed = 7;
    for (int i = 8; i < 10; i++) submit(&r, &c[i], 1, 4, s);
    for (int i = 0; i < 10; i++) client_wait(&c[i]);
    for (int i = 0; i < 9; i++)
        for (int k = 0; k < i; k++) assert_memory_not_equal(c[i].tokens, c[k].tokens, 16 * sizeof(int32_t));
    assert_memory_equal(c[8].tokens, c[9].tokens, 16 * sizeof(int32_t));
    stop(&r);
    /* The same seed in another engine, with another engine seed. */
    gm_engine_params p = params();
    p.seed = 99;
    start(&r, p);
    gm_scripted_set_margin(r.s, 0);
    client d;
    submit(&r, &d, 1, 4, s);
    client_wait(&d);
    assert_memory_equal(d.tokens, c[8].tokens, 16 * sizeof(int32_t));
    stop(&r);
}

static void output_logprobs(void **state)
{
    (void)state;
    rig r;
    start(&r, params());
    gm_scripted_set_margin(r.s, 3);
    client c;
    gm_sampling s = greedy(2);
    s.logprobs = 5;
    submit(&r, &c, 4, 6, s);
    client_wait(&c);
    assert_int_equal(c.last.token, c.tokens[1]);
    assert_int_equal(c.last.rank, 1);
    assert_int_equal(c.last.n_top, 5);
    assert_int_equal(c.top_ids[0], c.tokens[1]);
    assert_true(c.top_values[0] == c.last.logprob);
    for (int i = 1; i < 5; i++) assert_true(c.top_values[i] <= c.top_values[i - 1]);

    s.logprobs = 0;
    submit(&r, &c, 4, 6, s);
    client_wait(&c);
    assert_int_equal(c.last.n_top, 0);
    assert_true(c.last.logprob < 0);

    s.logprobs = -1;
    s.all_logprobs = true;
    const int32_t other = 11; /* a bias changes the choice and not the raw log-probabilities */
    const float bias = 50;
    s.bias_ids = &other;
    s.bias_values = &bias;
    s.n_bias = 1;
    submit(&r, &c, 4, 6, s);
    client_wait(&c);
    assert_int_equal(c.last.n_top, VOCAB);
    assert_int_equal(c.last.token, other);
    assert_true(c.last.rank > 1);
    assert_true(fabsf(c.row_sum - 1) < 1e-3f);
    assert_true(c.top_values[other] == c.last.logprob);
    int32_t above = 0;
    for (int i = 0; i < VOCAB; i++) above += c.top_values[i] > c.last.logprob;
    assert_int_equal(c.last.rank, above + 1);
    stop(&r);
}

/* Every prompt position but the first comes once and in order: in one chunk, in many, under preemption. */
static void prompt_logprobs(void **state)
{
    (void)state;
    static client c[24];
    for (int kind = 0; kind < 3; kind++) {
        gm_engine_params p = params();
        if (kind > 0) p.batch_tokens_max = 64, p.long_prefill_threshold = 5;
        if (kind == 2) p.n_pages = 60;
        rig r;
        start(&r, p);
        int32_t n = kind == 2 ? 24 : 3;
        gm_scripted_set_step_us(r.s, 50000); /* until all are in */
        for (int32_t i = 0; i < n; i++) {
            gm_sampling s = greedy(20);
            s.prompt_logprobs = i % 3;
            s.all_prompt_logprobs = i % 3 == 1;
            s.logprobs = i % 2 ? 2 : -1;
            submit(&r, &c[i], i, 17 + i % 5, s);
        }
        gm_scripted_set_step_us(r.s, 0);
        for (int32_t i = 0; i < n; i++) {
            int32_t n_prompt = 17 + i % 5, prompt[32];
            fill_prompt(prompt, i, n_prompt);
            client_wait(&c[i]);
            assert_int_equal(c[i].rows_wrong, 0);
            assert_int_equal(c[i].n_rows, n_prompt - 1);
            assert_memory_equal(c[i].row_tokens, prompt + 1, (size_t)(n_prompt - 1) * sizeof(int32_t));
            expect_script(&c[i], i, 20);
        }
        gm_engine_stats st;
        gm_engine_stats_get(r.e, &st);
        if (kind == 2) assert_true(st.preemptions > 0);
        stop(&r);
    }
}

/* A long prompt wants more rows than a step or a buffer holds. */
static void many_prompt_rows(void **state)
{
    (void)state;
    gm_engine_params p = params();
    p.model_len_max = 2000;
    p.batch_tokens_max = 2000;
    p.prefix_caching = false; /* chunks are cut for rows alone */
    rig r;
    start(&r, p);
    client c;
    client_init(&c);
    int32_t *prompt = gm_new_array(int32_t, 1800);
    gm_submit sub = {.prompt = prompt,
                     .n_prompt = fill_prompt(prompt, 9, 1800),
                     .sampling = greedy(3),
                     .sink = {on_event, &c}};
    sub.sampling.prompt_logprobs = 90;
    assert_int_equal(gm_engine_submit(r.e, &sub, NULL, NULL), GM_OK);
    client_wait(&c);
    assert_int_equal(c.rows_wrong, 0);
    assert_int_equal(c.next_row, 1800);
    expect_script(&c, 9, 3);
    gm_free(prompt);
    gm_engine_drain(r.e, 1);
    assert_int_equal(gm_scripted_steps(r.s), 4 + 2); /* 512 rows a step at most */
    stop(&r);
}

static void failed_step_ends_its_requests_only(void **state)
{
    (void)state;
    gm_engine_params p = params();
    p.seqs_max = 2;
    p.batch_tokens_max = 64;
    rig r;
    start(&r, p);
    gm_scripted_set_step_us(r.s, 1000);
    gm_scripted_fail_after(r.s, 3);
    static client c[4];
    for (int i = 0; i < 4; i++) submit(&r, &c[i], i, 4, greedy(30));
    for (int i = 0; i < 4; i++) client_wait(&c[i]);
    int failed = 0;
    for (int i = 0; i < 4; i++) {
        if (c[i].end.finish == GM_FINISH_ERROR) {
            failed++;
            assert_true(strstr(c[i].message, "scripted failure") != NULL);
            continue;
        }
        assert_int_equal(c[i].n, 30);
        expect_script(&c[i], i, 30);
    }
    assert_in_range(failed, 1, 2);
    gm_engine_stats st;
    gm_engine_stats_get(r.e, &st);
    assert_false(st.dead);
    assert_int_equal(st.finished[GM_FINISH_ERROR], failed);
    stop(&r);
}

static void three_failures_are_the_end(void **state)
{
    (void)state;
    gm_engine_params p = params();
    p.seqs_max = 1;
    rig r;
    start(&r, p);
    gm_scripted_fail_count(r.s, 3);
    gm_scripted_fail_after(r.s, 2);
    gm_scripted_set_step_us(r.s, 20000); /* all five are in before the first ends */
    static client c[5];
    for (int i = 0; i < 5; i++) submit(&r, &c[i], i, 4, greedy(30));
    for (int i = 0; i < 5; i++) {
        client_wait(&c[i]);
        assert_int_equal(c[i].end.finish, GM_FINISH_ERROR);
    }
    gm_error err = {0};
    gm_engine_drain(r.e, 0);
    gm_engine_stats st;
    gm_engine_stats_get(r.e, &st);
    assert_true(st.dead);
    assert_true(strstr(st.dead_reason, "scripted failure") != NULL);
    assert_int_equal(gm_engine_has_room(r.e, &err), GM_ECANCELED);
    stop(&r);

    start(&r, p);
    gm_scripted_fail_count(r.s, 100);
    gm_scripted_fail_after(r.s, 0);
    for (int i = 0; i < 3; i++) {
        submit(&r, &c[i], i, 4, greedy(30));
        client_wait(&c[i]);
    }
    gm_status s = GM_OK;
    for (int tries = 0; tries < 1000 && s != GM_EDEVICE; tries++) {
        s = try_submit(&r, &c[3], 1, 4, greedy(3), &err);
        if (!s) client_wait(&c[3]);
    }
    assert_int_equal(s, GM_EDEVICE);
    assert_true(strstr(err.message, "scripted failure") != NULL);
    stop(&r);
}

static void drains(void **state)
{
    (void)state;
    rig r;
    start(&r, params());
    gm_scripted_set_step_us(r.s, 500);
    static client c[8];
    for (int i = 0; i < 8; i++) submit(&r, &c[i], i, 4, greedy(30));
    gm_engine_drain(r.e, 60);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(c[i].n_finish, 1);
        assert_int_equal(c[i].n, 30);
    }
    gm_error err = {0};
    client late;
    assert_int_equal(try_submit(&r, &late, 1, 4, greedy(3), &err), GM_ECANCELED);
    stop(&r);

    start(&r, params());
    gm_scripted_set_step_us(r.s, 5000);
    for (int i = 0; i < 8; i++) submit(&r, &c[i], i, 4, greedy(100));
    int64_t begin_us = gm_now_us();
    gm_engine_drain(r.e, 0.02);
    assert_true(gm_now_us() - begin_us < 5000000);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(c[i].n_finish, 1);
        assert_int_equal(c[i].end.finish, GM_FINISH_ABORT);
    }
    stop(&r);

    /* Destroying without draining ends them too. */
    start(&r, params());
    gm_scripted_set_step_us(r.s, 2000);
    for (int i = 0; i < 8; i++) submit(&r, &c[i], i, 4, greedy(100));
    gm_engine_destroy(r.e);
    gm_scripted_destroy(r.s);
    for (int i = 0; i < 8; i++) assert_int_equal(c[i].n_finish, 1);
}

static void cancel_from_the_sink(void **state)
{
    (void)state;
    rig r;
    start(&r, params());
    client c;
    client_init(&c);
    c.cancel_on = r.e;
    c.cancel_at = 3;
    int32_t prompt[4];
    gm_submit sub = {.prompt = prompt,
                     .n_prompt = fill_prompt(prompt, 1, 4),
                     .sampling = greedy(30),
                     .sink = {on_event, &c}};
    assert_int_equal(gm_engine_submit(r.e, &sub, NULL, NULL), GM_OK);
    client_wait(&c);
    assert_int_equal(c.n, 3);
    assert_int_equal(c.end.finish, GM_FINISH_ABORT);
    gm_engine_cancel(r.e, c.event_id); /* it is over: ignored */
    gm_engine_cancel(r.e, 12345);
    stop(&r);
}

/* A step of a minute in which every request is cancelled is given up, and the engine goes on with others. */
static void cancel_abandons_the_step(void **state)
{
    (void)state;
    rig r;
    start(&r, params());
    client c[2], other;
    gm_scripted_set_step_us(r.s, 60 * 1000000LL);
    gm_request_id ids[2];
    for (int i = 0; i < 2; i++) {
        client_init(&c[i]);
        int32_t prompt[4];
        gm_submit sub = {.prompt = prompt,
                         .n_prompt = fill_prompt(prompt, i, 4),
                         .sampling = greedy(30),
                         .sink = {on_event, &c[i]}};
        assert_int_equal(gm_engine_submit(r.e, &sub, &ids[i], NULL), GM_OK);
    }
    gm_engine_stats st = {0};
    while (st.step_begun_us == 0) gm_engine_stats_get(r.e, &st);
    int64_t begin_us = gm_now_us();
    gm_engine_cancel(r.e, ids[1]); /* in the step or still queued: gone before the step that holds the first can end */
    gm_engine_cancel(r.e, ids[0]);
    for (int i = 0; i < 2; i++) {
        client_wait(&c[i]);
        assert_int_equal(c[i].end.finish, GM_FINISH_ABORT);
        assert_int_equal(c[i].n, 0);
    }
    assert_true(gm_now_us() - begin_us < 30 * 1000000LL); /* not the minute */
    gm_scripted_set_step_us(r.s, 0);
    submit(&r, &other, 1, 4, greedy(5));
    client_wait(&other);
    assert_int_equal(other.end.finish, GM_FINISH_LENGTH);
    gm_engine_stats_get(r.e, &st);
    assert_false(st.dead);
    stop(&r);
}

typedef struct canceller {
    gm_engine *e;
    client *c;
    int n;
    uint64_t seed;
} canceller;

static void *cancel_some(void *arg)
{
    canceller *k = arg;
    gm_rng rng;
    gm_rng_init(&rng, k->seed);
    for (int i = 0; i < k->n; i++) {
        client *c = &k->c[gm_rng_below(&rng, (uint64_t)k->n)];
        gm_engine_cancel(k->e, c->id);
        if (gm_rng_below(&rng, 4) == 0) sleep_ms(1);
    }
    return NULL;
}

/* Queued, in prefill, decoding, preempted, finished: whatever the cancel meets, one FINISH follows and all
 * space comes back. */
static void cancels_meet_every_state(void **state)
{
    (void)state;
    enum { N = 300, THREADS = 4 };
    static client c[N];
    gm_engine_params p = params();
    p.n_pages = 100;
    p.seqs_max = 16;
    p.long_prefill_threshold = 6;
    rig r;
    start(&r, p);
    gm_scripted_set_step_us(r.s, 100);
    for (int i = 0; i < N; i++) submit(&r, &c[i], i % SCRIPTS, 5 + i % 30, greedy(1 + i % 40));
    pthread_t threads[THREADS];
    canceller k[THREADS];
    for (int t = 0; t < THREADS; t++) {
        k[t] = (canceller){r.e, c, N, (uint64_t)t};
        assert_int_equal(pthread_create(&threads[t], NULL, cancel_some, &k[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    for (int i = 0; i < N; i++) client_wait(&c[i]);
    gm_engine_drain(r.e, 5);
    gm_engine_stats st;
    gm_engine_stats_get(r.e, &st);
    int64_t ended = 0, tokens = 0;
    for (int i = 0; i < 5; i++) ended += st.finished[i];
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].n_finish, 1);
        assert_int_equal(c[i].n, c[i].end.n_output);
        expect_script(&c[i], i % SCRIPTS, c[i].n);
        tokens += c[i].n;
    }
    assert_int_equal(ended, N);
    assert_int_equal(st.generation_tokens, tokens);
    assert_int_equal(st.e2e_s.n, N);
    assert_true(st.finished[GM_FINISH_ABORT] > 0);
    stop(&r);
}

static void cancel_while_waiting_and_running(void **state)
{
    (void)state;
    gm_engine_params p = params();
    p.seqs_max = 1;
    rig r;
    start(&r, p);
    gm_scripted_set_step_us(r.s, 10000);
    client a, b;
    submit(&r, &a, 1, 4, greedy(100));
    submit(&r, &b, 2, 4, greedy(100));
    gm_engine_cancel(r.e, b.id);
    client_wait(&b);
    assert_int_equal(b.end.finish, GM_FINISH_ABORT);
    assert_int_equal(b.end.scheduled_us, 0);
    assert_int_equal(b.n, 0);
    while (client_tokens(&a) < 2) sleep_ms(1);
    gm_engine_stats st = {0};
    for (int i = 0; i < 1000 && st.step_begun_us == 0; i++) gm_engine_stats_get(r.e, &st);
    assert_true(st.step_begun_us > 0); /* the one in progress, for a watchdog */
    int64_t begin_us = gm_now_us();
    gm_engine_cancel(r.e, a.id);
    client_wait(&a);
    assert_true(gm_now_us() - begin_us < 1000000);
    stop(&r);
}

static void queue_limits(void **state)
{
    (void)state;
    gm_engine_params p = params();
    p.queued_reqs_max = 3;
    rig r;
    start(&r, p);
    gm_scripted_set_step_us(r.s, 100000);
    static client c[4];
    gm_error err = {0};
    for (int i = 0; i < 3; i++) submit(&r, &c[i], i, 4, greedy(2));
    assert_int_equal(gm_engine_has_room(r.e, &err), GM_ECAPACITY);
    assert_int_equal(try_submit(&r, &c[3], 1, 4, greedy(2), &err), GM_ECAPACITY);
    assert_true(strstr(err.message, "max_num_queued_reqs") != NULL);
    for (int i = 0; i < 3; i++) client_wait(&c[i]);
    assert_int_equal(gm_engine_has_room(r.e, &err), GM_OK);
    stop(&r);

    p = params();
    p.queued_tokens_max = 10;
    start(&r, p);
    gm_scripted_set_step_us(r.s, 100000);
    submit(&r, &c[0], 0, 9, greedy(50)); /* 9 < 10: there is still room, whatever the next one's length */
    submit(&r, &c[1], 1, 9, greedy(50));
    assert_int_equal(try_submit(&r, &c[2], 1, 4, greedy(2), &err), GM_ECAPACITY);
    assert_true(strstr(err.message, "max_num_queued_tokens") != NULL);
    while (client_tokens(&c[0]) == 0 || client_tokens(&c[1]) == 0) sleep_ms(1);
    submit(&r, &c[2], 2, 4, greedy(2)); /* prompts that have a token count no more */
    gm_scripted_set_step_us(r.s, 0);
    for (int i = 0; i < 3; i++) client_wait(&c[i]);
    stop(&r);
}

static void refuses_what_cannot_run(void **state)
{
    (void)state;
    gm_engine_params p = params();
    p.n_pages = 10;
    rig r;
    start(&r, p);
    client c;
    gm_error err = {0};
    gm_sampling s = greedy(10);
    assert_int_equal(try_submit(&r, &c, 1, 0, s, &err), GM_EARG);
    assert_true(strstr(err.message, "cannot be empty") != NULL);
    assert_int_equal(try_submit(&r, &c, 1, 128, s, &err), GM_EARG);
    assert_true(strstr(err.message, "at least 1") != NULL);
    assert_int_equal(try_submit(&r, &c, 1, 129, s, &err), GM_EARG);
    assert_true(strstr(err.message, "longer than the maximum model length") != NULL);
    assert_int_equal(try_submit(&r, &c, 1, 32, s, &err), GM_EARG); /* 41 tokens, room for 40 */
    assert_true(strstr(err.message, "whole cache") != NULL);
    assert_int_equal(try_submit(&r, &c, VOCAB, 3, s, &err), GM_EARG);
    assert_true(strstr(err.message, "out of vocabulary") != NULL);
    submit(&r, &c, 1, 31, s);
    client_wait(&c);
    assert_int_equal(c.n, 10);

    gm_sampling bad[12];
    for (int i = 0; i < 12; i++) bad[i] = s;
    const int32_t outside = VOCAB;
    const float one = 1;
    bad[0].temperature = -1;
    bad[1].top_p = 0;
    bad[2].top_k = -2;
    bad[3].min_p = 1.5f;
    bad[4].repetition_penalty = 0;
    bad[5].max_tokens = 0;
    bad[6].min_tokens = 11;
    bad[7].temperature = NAN;
    bad[8].allowed_ids = &outside;
    bad[8].n_allowed = 1;
    bad[9].bias_ids = &outside;
    bad[9].bias_values = &one;
    bad[9].n_bias = 1;
    bad[10].think_budget = 2; /* without an id to force */
    bad[11].logprobs = -2;
    for (int i = 0; i < 12; i++) assert_int_equal(try_submit(&r, &c, 1, 3, bad[i], &err), GM_EARG);
    gm_engine_drain(r.e, 0); /* what was refused left nothing open */
    stop(&r);
}

static void statistics_count_each_request_once(void **state)
{
    (void)state;
    gm_engine_params p = params();
    p.batch_tokens_max = 64;
    p.seqs_max = 8;
    p.long_prefill_threshold = 5; /* prompts of five chunks */
    rig r;
    start(&r, p);
    static client c[3];
    for (int i = 0; i < 3; i++) submit(&r, &c[i], i, 25, greedy(10));
    for (int i = 0; i < 3; i++) client_wait(&c[i]);
    gm_engine_drain(r.e, 1);
    gm_engine_stats st;
    gm_engine_stats_get(r.e, &st);
    const gm_histogram *once[] = {&st.queue_s,
                                  &st.prefill_s,
                                  &st.decode_s,
                                  &st.inference_s,
                                  &st.e2e_s,
                                  &st.tpot_s,
                                  &st.prompt_len,
                                  &st.generation_len,
                                  &st.max_tokens_param,
                                  &st.prefill_computed,
                                  &st.preemptions_per_req};
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++) {
        int64_t sum = 0;
        for (int32_t k = 0; k <= once[i]->n_bounds; k++) sum += once[i]->counts[k];
        assert_int_equal(once[i]->n, 3);
        assert_int_equal(sum, 3);
    }
    assert_int_equal(st.itl_s.n, 3 * 9);
    assert_int_equal(st.iteration_tokens.n, st.steps);
    assert_true(st.iteration_tokens.sum == 3 * (25 + 9));
    assert_true(st.prompt_len.sum == 75 && st.generation_len.sum == 30);
    assert_int_equal(st.computed_prompt_tokens, 75);
    assert_int_equal(st.prompt_len.n_bounds, 7); /* 1 2 5 10 20 50 100 */
    assert_int_equal(st.prompt_len.counts[5], 3);
    assert_int_equal(st.queue_s.n_bounds, 21);
    assert_int_equal(st.itl_s.n_bounds, 19);
    assert_int_equal(st.iteration_tokens.n_bounds, 13);
    assert_int_equal(st.finished[GM_FINISH_LENGTH], 3);
    /* The last event comes before the end of its step. */
    for (int i = 0; i < 1000 && st.step_begun_us; i++) {
        sleep_ms(1);
        gm_engine_stats_get(r.e, &st);
    }
    assert_int_equal(st.step_begun_us, 0);
    assert_true(st.last_step_us > 0);
    stop(&r);
}

static void memory_failures_are_reported(void **state)
{
    (void)state;
    gm_engine_params p = params();
    rig r;
    prepare(&r, p);
    gm_error err = {0};
    gm_status st = GM_ENOMEM;
    long n = 1;
    for (; st; n++) {
        gm_alloc_fail_at(n);
        st = gm_engine_create(&r.e, &p, &r.backend, &err);
        if (st) assert_int_equal(st, GM_ENOMEM);
    }
    assert_true(n > 15);
    client c;
    st = GM_ENOMEM;
    for (n = 1; st; n++) {
        gm_alloc_fail_at(n);
        st = try_submit(&r, &c, 1, 5, greedy(3), &err);
        if (st) assert_int_equal(st, GM_ENOMEM);
    }
    gm_alloc_fail_at(0);
    assert_true(n > 3);
    client_wait(&c);
    expect_script(&c, 1, 3);
    stop(&r);

    p.n_eos = GM_EOS_MAX + 1;
    gm_engine *e = NULL;
    gm_backend unused = {0};
    assert_int_equal(gm_engine_create(&e, &p, &unused, &err), GM_EARG);
    p = params();
    p.batch_tokens_max = 63;
    assert_int_equal(gm_engine_create(&e, &p, &unused, &err), GM_EARG);
    assert_null(e);
}

/* ---- prefix caching ---- */

static void submit_prompt(rig *r, client *c, const int32_t *prompt, int32_t n, gm_sampling s, const char *salt)
{
    gm_error err = {0};
    client_init(c);
    gm_submit sub = {.prompt = prompt, .n_prompt = n, .sampling = s, .cache_salt = salt, .sink = {on_event, c}};
    if (gm_engine_submit(r->e, &sub, &c->id, &err)) fail_msg("%s", err.message);
}

/* The same prompt again, a longer one, another salt, prompt log-probabilities, after a reset; with and without state. */
static void reports_what_was_cached(void **state)
{
    (void)state;
    for (int32_t slots = 0; slots < 65; slots += 64) {
        gm_engine_params p = params();
        p.n_slots = slots;
        rig r;
        start(&r, p);
        client c;
        int32_t prompt[32];
        fill_prompt(prompt, 7, 32);
        static const struct {
            int32_t n, cached, rows;
            const char *salt;
        } steps[] = {{21, 0, -1, NULL}, {21, 20, -1, NULL}, {20, 16, -1, NULL}, {32, 20, -1, NULL}, {32, 28, -1, NULL},
                     {32, 0, -1, "a"},  {32, 28, -1, "a"},  {32, 0, -1, "b"},   {32, 0, 1, NULL},   {3, 0, -1, NULL}};
        int64_t cached = 0, total = 0;
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            gm_sampling s = greedy(6);
            s.prompt_logprobs = steps[i].rows;
            submit_prompt(&r, &c, prompt, steps[i].n, s, steps[i].salt);
            client_wait(&c);
            expect_script(&c, 7, 6);
            assert_int_equal(c.end.n_cached, steps[i].cached);
            cached += steps[i].cached;
            total += steps[i].n;
        }
        gm_engine_stats st;
        gm_engine_stats_get(r.e, &st);
        assert_int_equal(st.prompt_tokens, total);
        assert_int_equal(st.cached_prompt_tokens, cached);
        assert_int_equal(st.prefix.hits, cached);
        assert_int_equal(st.prefix.queries, total - 32);
        assert_int_equal(st.computed_prompt_tokens, total - cached);
        assert_true(st.prefill_computed.sum == (double)(total - cached));
        assert_true(st.pages_cached > 0 && (st.snapshots > 0) == (slots > 0));
        assert_true(gm_engine_reset_prefix_cache(r.e, 5));
        gm_engine_stats_get(r.e, &st);
        assert_int_equal(st.pages_cached + st.snapshots, 0);
        submit_prompt(&r, &c, prompt, 32, greedy(6), NULL);
        client_wait(&c);
        assert_int_equal(c.end.n_cached, 0);
        gm_scripted_set_step_us(r.s, 20000);
        submit_prompt(&r, &c, prompt, 32, greedy(30), NULL);
        while (client_tokens(&c) == 0) sleep_ms(1);
        assert_false(gm_engine_reset_prefix_cache(r.e, 5)); /* it holds its pages */
        gm_scripted_set_step_us(r.s, 0);
        client_wait(&c);
        stop(&r);
    }
}

/* Three conversations take turns in a cache that holds one and a half: each answer is the script's, whatever was
 * found or lost. The backend checks that each page and each state is the right one. */
static void conversations_share_a_small_cache(void **state)
{
    (void)state;
    enum { TURNS = 200 };
    gm_engine_params p = params();
    p.n_pages = 16;
    p.n_slots = 8;
    p.seqs_max = 2;
    p.model_len_max = 48;
    rig r;
    start(&r, p);
    client c;
    int64_t cached = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        int32_t script = turn % 3, n = 5 + turn / 3 % 4 * 9, prompt[48];
        fill_prompt(prompt, script, n);
        submit_prompt(&r, &c, prompt, n, greedy(5 + turn % 7), NULL);
        client_wait(&c);
        expect_script(&c, script, 5 + turn % 7);
        cached += c.end.n_cached;
    }
    gm_engine_stats st;
    gm_engine_stats_get(r.e, &st);
    print_message("%lld tokens cached, %lld pages and %lld snapshots evicted\n", (long long)cached,
                  (long long)st.pages_evicted, (long long)st.snapshots_evicted);
    assert_true(cached > 0 && st.pages_evicted > 0 && st.snapshots_evicted > 0);
    stop(&r);
}

/* A copy that fails before a step ends the step's requests; one that fails after it is not kept. */
static void failed_copies_leave_nothing_wrong(void **state)
{
    (void)state;
    rig r;
    start(&r, params());
    client c;
    int32_t prompt[32];
    fill_prompt(prompt, 4, 32);
    for (int round = 0; round < 3; round++) {
        gm_scripted_fail_copies(r.s, 1);
        submit_prompt(&r, &c, prompt, 21, greedy(6), NULL);
        client_wait(&c);
        assert_int_equal(c.end.finish, GM_FINISH_ERROR);
        assert_true(strstr(c.message, "failure of a copy") != NULL);
        submit_prompt(&r, &c, prompt, 21, greedy(6), NULL);
        client_wait(&c);
        expect_script(&c, 4, 6);
        assert_int_equal(c.end.n_cached, round ? 20 : 0);
    }
    stop(&r);
}

static void cold_and_warm_agree(rig *warm, rig *cold, const int32_t *prompt, int32_t n, gm_sampling s)
{
    client a, b;
    submit_prompt(warm, &a, prompt, n, s, NULL);
    submit_prompt(cold, &b, prompt, n, s, NULL);
    client_wait(&a);
    client_wait(&b);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.tokens, b.tokens, (size_t)a.n * sizeof *a.tokens);
    assert_int_equal(b.end.n_cached, 0);
}

/* Penalties, bans and budgets look at prompt and output, not at what was computed. */
static void sampling_does_not_see_the_cache(void **state)
{
    (void)state;
    gm_engine_params p = params();
    rig warm, cold;
    start(&warm, p);
    p.prefix_caching = false;
    start(&cold, p);
    gm_scripted_set_margin(warm.s, 1);
    gm_scripted_set_margin(cold.s, 1);
    int32_t prompt[40];
    for (int i = 0; i < 40; i++) {
        gm_sampling s = greedy(20);
        s.temperature = i % 2 ? 0.9f : 0;
        s.has_seed = true;
        s.seed = i;
        s.repetition_penalty = 1.2f;
        s.frequency_penalty = 0.3f;
        s.presence_penalty = 0.1f;
        s.min_tokens = i % 5;
        s.logprobs = 3;
        fill_prompt(prompt, i % 3, 40);
        cold_and_warm_agree(&warm, &cold, prompt, 10 + i % 30, s);
    }
    gm_engine_stats st;
    gm_engine_stats_get(warm.e, &st);
    assert_true(st.cached_prompt_tokens > 0);
    gm_engine_stats_get(cold.e, &st);
    assert_int_equal(st.prefix.queries + st.pages_cached, 0);
    stop(&warm);
    stop(&cold);
}

static void drop_line(void *user, gm_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

int main(void)
{
    gm_log_set_sink(drop_line, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_script_to_its_end),
        cmocka_unit_test(lengths_are_exact),
        cmocka_unit_test(stop_rules),
        cmocka_unit_test(sampling_fields),
        cmocka_unit_test(pressure_changes_no_output),
        cmocka_unit_test(seeds),
        cmocka_unit_test(output_logprobs),
        cmocka_unit_test(prompt_logprobs),
        cmocka_unit_test(many_prompt_rows),
        cmocka_unit_test(failed_step_ends_its_requests_only),
        cmocka_unit_test(three_failures_are_the_end),
        cmocka_unit_test(drains),
        cmocka_unit_test(cancel_from_the_sink),
        cmocka_unit_test(cancel_abandons_the_step),
        cmocka_unit_test(cancels_meet_every_state),
        cmocka_unit_test(cancel_while_waiting_and_running),
        cmocka_unit_test(queue_limits),
        cmocka_unit_test(refuses_what_cannot_run),
        cmocka_unit_test(statistics_count_each_request_once),
        cmocka_unit_test(memory_failures_are_reported),
        cmocka_unit_test(reports_what_was_cached),
        cmocka_unit_test(conversations_share_a_small_cache),
        cmocka_unit_test(failed_copies_leave_nothing_wrong),
        cmocka_unit_test(sampling_does_not_see_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
