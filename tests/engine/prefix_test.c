/* Prefix caching on real models: what resumes from the cache gives the same bits as what is computed in full.
 * Every comparison is of whole rows of log-probabilities. Slots that no request and no snapshot has are
 * filled with NaN before each step, as is the whole cache at first, so that a state or a row taken from
 * elsewhere cannot pass unseen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "model/model_internal.h"

enum { OUT_MAX = 256, SLOTS_MAX = 64 };

/* rounds of a test that repeats itself: all, or a tenth where each is slow */
#ifdef GM_SHORT_TESTS
enum { TENTH = 10, TURNS_TINY = 6, CROWDS = 1 };
#else
enum { TENTH = 1, TURNS_TINY = 20, CROWDS = 4 };
#endif
#define TINY GM_MODELS "/tiny-glm-5.3-flash"
#define GLM53 GM_FIXTURES "/golden/glm53-a"
#define GLM52 GM_FIXTURES "/golden/glm52-a"

/* ---- a model that poisons what nobody uses ---- */

typedef struct rig {
    gm_device *dev;
    gm_model_config config;
    gm_weights *w;
    gm_model *m;
    gm_footprint foot;
    int32_t n_slots;
    bool poison;          /* one request at a time: a slot out of the step is out of use */
    bool kept[SLOTS_MAX]; /* a snapshot was copied there */
    gm_backend backend;
    gm_engine *e;
} rig;

static gm_status poisoned_step(void *self, const gm_batch *b, gm_error *err)
{
    rig *r = self;
    bool used[SLOTS_MAX] = {0};
    for (int32_t i = 0; i < b->n_slices && r->n_slots; i++) {
        used[b->slices[i].slot.id] = true;
        r->kept[b->slices[i].slot.id] = false;
    }
    for (int32_t i = 0; i < r->n_slots && r->poison; i++)
        if (!used[i] && !r->kept[i])
            memset(r->m->slots + i * r->foot.slot_bytes, 0xFF, (size_t)r->foot.slot_bytes);
    return gm_model_step(r->m, b, err);
}

static gm_status poisoned_logits(void *self, int32_t out_begin, int32_t n_rows, float *logits, gm_error *err)
{
    return gm_model_logits(((rig *)self)->m, out_begin, n_rows, logits, err);
}

static gm_status poisoned_copy(void *self, const gm_slot_copy *copies, int32_t n, gm_error *err)
{
    rig *r = self;
    for (int32_t i = 0; i < n; i++) r->kept[copies[i].to.id] = true;
    return gm_model_copy_slots(r->m, copies, n, err);
}

typedef struct setup {
    const char *path;
    int32_t n_pages, n_slots, seqs, batch_tokens, model_len, interval;
    bool cached, poison;
} setup;

static void must(gm_status st, const gm_error *err)
{
    if (st) fail_msg("%s: %s", gm_status_text(st), err->message);
}

static void start(rig *r, const setup *s)
{
    gm_error err = {0};
    memset(r, 0, sizeof *r);
    must(gm_device_open_cpu(&r->dev, gm_isa_detect(), 2, &err), &err);
    must(gm_model_config_load(&r->config, s->path, NULL, &err), &err);
    must(gm_weights_open(&r->w, s->path, &r->config, r->dev, NULL, &err), &err);
    gm_footprint_params fp = {GM_KV_BF16, gm_kv_index_dtype(GM_KV_BF16), false};
    r->foot = gm_footprint_compute(&r->config, &fp);
    r->n_slots = r->foot.slot_bytes ? s->n_slots : 0;
    r->poison = s->poison;
    gm_model_params mp = {.act = GM_ACT_F32,
                          .kv_dtype = GM_KV_BF16,
                          .index_dtype = gm_kv_index_dtype(GM_KV_BF16),
                          .page_tokens = r->foot.page_tokens,
                          .n_pages = s->n_pages,
                          .n_slots = r->n_slots,
                          .batch_tokens_max = s->batch_tokens,
                          .batch_slices_max = s->seqs,
                          .positions_max = s->model_len};
    must(gm_model_create(&r->m, r->w, &mp, r->dev, &err), &err);
    memset(r->m->pages, 0xFF, (size_t)r->m->pages_bytes);
    if (r->n_slots) memset(r->m->slots, 0xFF, (size_t)r->m->slots_bytes);
    r->backend = (gm_backend){r, poisoned_step, poisoned_logits, poisoned_copy};
    gm_engine_params p = {.vocab_size = r->config.vocab_size,
                          .vocab_used = r->config.vocab_size,
                          .model_len_max = s->model_len,
                          .batch_tokens_max = s->batch_tokens,
                          .seqs_max = s->seqs,
                          .chunked_prefill = true,
                          .reserve_full_prompt = true,
                          .queued_reqs_max = -1,
                          .queued_tokens_max = -1,
                          .page_tokens = r->foot.page_tokens,
                          .n_pages = s->n_pages,
                          .n_slots = r->n_slots,
                          .prefix_caching = s->cached,
                          .snapshot_interval = s->interval,
                          .alloc_guard = true};
    must(gm_engine_create(&r->e, &p, &r->backend, &err), &err);
}

static gm_engine_stats rest(rig *r)
{
    gm_engine_stats st;
    gm_engine_drain(r->e, 60);
    gm_engine_stats_get(r->e, &st);
    assert_int_equal(st.running + st.waiting, 0);
    assert_int_equal(st.pages_used + st.slots_used, 0); /* free or cached */
    return st;
}

static gm_engine_stats stop(rig *r)
{
    gm_engine_stats st = rest(r);
    gm_engine_destroy(r->e);
    gm_model_destroy(r->m);
    gm_weights_close(r->w);
    gm_device_close(r->dev);
    return st;
}

/* ---- requests ---- */

typedef struct answer {
    pthread_mutex_t lock;
    pthread_cond_t done;
    gm_request_id id;
    bool finished;
    gm_finish finish;
    int32_t tokens[OUT_MAX], n, n_cached;
    uint64_t bits[OUT_MAX]; /* of each row of log-probabilities */
    gm_engine *cancel_on;
    int32_t cancel_at;
} answer;

static uint64_t bits_of(const float *x, int32_t n)
{
    uint64_t h = 1;
    for (int32_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, x + i, sizeof b);
        h = (h ^ b) * 0x100000001B3u;
    }
    return h;
}

static void on_event(void *user, const gm_event *ev)
{
    answer *a = user;
    pthread_mutex_lock(&a->lock);
    if (ev->kind == GM_EVENT_TOKENS) {
        a->bits[a->n] = bits_of(ev->logprobs[0].top_logprobs, ev->logprobs[0].n_top);
        a->tokens[a->n++] = ev->tokens[0];
        if (a->cancel_on && a->n == a->cancel_at) gm_engine_cancel(a->cancel_on, ev->id);
    } else if (ev->kind == GM_EVENT_FINISH) {
        a->finished = true;
        a->finish = ev->finish;
        a->n_cached = ev->n_cached;
        pthread_cond_broadcast(&a->done);
    }
    pthread_mutex_unlock(&a->lock);
}

static void submit(rig *r, answer *a, const int32_t *prompt, int32_t n, int32_t n_out, float temperature)
{
    gm_error err = {0};
    gm_submit s = {.prompt = prompt, .n_prompt = n, .sampling = GM_SAMPLING_DEFAULT, .sink = {on_event, a}};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->done, NULL);
    a->finished = false;
    a->n = 0;
    s.sampling.temperature = temperature;
    s.sampling.has_seed = true;
    s.sampling.seed = 11;
    s.sampling.max_tokens = n_out;
    s.sampling.ignore_eos = true;
    s.sampling.all_logprobs = true;
    if (temperature > 0) {
        s.sampling.repetition_penalty = 1.1f;
        s.sampling.frequency_penalty = 0.1f;
        s.sampling.presence_penalty = 0.1f;
    }
    must(gm_engine_submit(r->e, &s, &a->id, &err), &err);
}

static void wait_for(answer *a)
{
    pthread_mutex_lock(&a->lock);
    while (!a->finished) pthread_cond_wait(&a->done, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

static void ask(rig *r, answer *a, const int32_t *prompt, int32_t n, int32_t n_out)
{
    a->cancel_on = NULL;
    submit(r, a, prompt, n, n_out, 0);
    wait_for(a);
    assert_int_equal(a->finish, GM_FINISH_LENGTH);
    assert_int_equal(a->n, n_out);
}

static void same(const answer *a, const answer *b, int32_t n)
{
    assert_memory_equal(a->tokens, b->tokens, (size_t)n * sizeof *a->tokens);
    for (int32_t i = 0; i < n; i++)
        if (a->bits[i] != b->bits[i]) fail_msg("output %d: the same token, other log-probabilities", i);
}

static void made_up(const rig *r, int32_t *tokens, int32_t n, uint64_t seed)
{
    gm_rng rng;
    gm_rng_init(&rng, seed);
    for (int32_t i = 0; i < n; i++)
        tokens[i] = 5 + (int32_t)gm_rng_below(&rng, (uint64_t)r->config.vocab_size - 5);
}

static const setup one_at_a_time = {.n_pages = 64,
                                    .n_slots = 20,
                                    .seqs = 1,
                                    .batch_tokens = 256,
                                    .model_len = 512,
                                    .interval = 64,
                                    .cached = true,
                                    .poison = true};

static setup of(const char *path)
{
    setup s = one_at_a_time;
    s.path = path;
    return s;
}

static setup cold_of(setup s)
{
    s.cached = false;
    s.n_pages = 64;
    s.n_slots = 20;
    return s;
}

/* ---- tests ---- */

/* A prompt of 130 tokens is cached, with a state at 64 and 128. Then each of its beginnings, and prompts that
 * part from it after each number of tokens. */
static void resumes_at_every_point(const char *path, int step, int32_t chunk)
{
    static answer a, b;
    rig warm, cold;
    int32_t prompt[130], other[130];
    setup s = of(path), c = cold_of(s);
    s.batch_tokens = chunk;
    s.n_pages = 128;
    s.n_slots = SLOTS_MAX;
    start(&warm, &s);
    start(&cold, &c);
    made_up(&warm, prompt, 130, 3);
    ask(&warm, &a, prompt, 130, 2);
    assert_int_equal(a.n_cached, 0);
    for (int32_t n = 1; n <= 130; n += n % 64 > 61 || n % 64 < 3 ? 1 : step * TENTH < 30 ? step * TENTH : 30) {
        ask(&warm, &a, prompt, n, 3);
        ask(&cold, &b, prompt, n, 3);
        same(&a, &b, 3);
        assert_int_equal(a.n_cached, (n - 1) / 64 * 64);
        assert_int_equal(b.n_cached, 0);
        for (int32_t i = 0; i < 130; i++) other[i] = i < n ? prompt[i] : prompt[129 - i];
        if ((n % 64 > 1 && n % 64 < 63 && n % 16) || n == 130 || other[n] == prompt[n]) continue;
        ask(&warm, &a, other, 130, 3);
        ask(&cold, &b, other, 130, 3);
        same(&a, &b, 3);
        assert_int_equal(a.n_cached, n / 64 * 64);
    }
    (void)stop(&cold);
    gm_engine_stats st = stop(&warm);
    assert_true(st.cached_prompt_tokens > 0);
}

static void every_resume_point(void **state)
{
    (void)state;
    resumes_at_every_point(GLM53, 1, 256);
    resumes_at_every_point(GLM52, 3, 256);
    resumes_at_every_point(TINY, 20, 256);
}

static void every_resume_point_in_small_chunks(void **state)
{
    (void)state;
    resumes_at_every_point(GLM53, 3, 7);
    resumes_at_every_point(GLM52, 3, 65);
}

/* Prompts that end at and around page boundaries, each twice, and gone on with by their own output. The
 * repetition computes at most one page and what lies behind it. */
static void prompts_at_page_boundaries(void **state)
{
    (void)state;
    static const char *const paths[] = {GLM53, GLM52, TINY};
    static const int32_t lengths[] = {63, 64, 65, 127, 128, 129, 192, 256};
    static answer a, b;
    for (int k = 0; k < 3; k++) {
        rig warm, cold;
        setup s = of(paths[k]), c = cold_of(s);
        s.interval = 0;
        start(&warm, &s);
        start(&cold, &c);
        for (int i = 0; i < 8; i += k == 2 ? 4 : 1) {
            int32_t n = lengths[i], prompt[512];
            made_up(&warm, prompt, n, (uint64_t)i);
            ask(&cold, &b, prompt, n, 70);
            for (int round = 0; round < 2; round++) {
                ask(&warm, &a, prompt, n, 70);
                same(&a, &b, 70);
                assert_int_equal(a.n_cached, round ? (n - 1) / 64 * 64 : 0);
                assert_true(!round || n - a.n_cached <= 64);
            }
            memcpy(prompt + n, b.tokens,
                   70 * sizeof *prompt); /* the next turn: prompt, answer, and a little more */
            made_up(&warm, prompt + n + 70, 9, 99);
            ask(&cold, &b, prompt, n + 79, 3);
            ask(&warm, &a, prompt, n + 79, 3);
            same(&a, &b, 3);
            assert_int_equal(a.n_cached, (n + 69) / 64 * 64);
        }
        (void)stop(&cold);
        (void)stop(&warm);
    }
}

/* Two sessions take turns a hundred times; each always gets its own answer. */
static void two_sessions_alternate(void **state)
{
    (void)state;
    static const char *const paths[] = {TINY, GLM53, GLM52};
    static answer want[2], a;
    for (int k = 0; k < 3; k++) {
        rig warm, cold;
        setup s = of(paths[k]), c = cold_of(s);
        s.n_slots = 4;
        s.n_pages = 12;
        start(&warm, &s);
        start(&cold, &c);
        int32_t prompt[2][150];
        for (int i = 0; i < 2; i++) {
            made_up(&warm, prompt[i], 150, (uint64_t)i + 50);
            if (i) memcpy(prompt[1], prompt[0], 70 * sizeof **prompt); /* one page in common, and a piece */
            ask(&cold, &want[i], prompt[i], 150, 4);
        }
        for (int turn = 0; turn < (k == 0 ? TURNS_TINY : 200 / TENTH); turn++) {
            ask(&warm, &a, prompt[turn & 1], 150, 4);
            same(&a, &want[turn & 1], 4);
            assert_true(turn < 4 || a.n_cached == 128);
        }
        (void)stop(&cold);
        (void)stop(&warm);
    }
}

/* Three growing sessions, round-robin, in eight pages, two hundred turns. */
static void three_sessions_in_eight_pages(void **state)
{
    (void)state;
    static const char *const paths[] = {GLM53, GLM52};
    static answer a, b;
    for (int k = 0; k < 2; k++) {
        rig warm, cold;
        setup s = of(paths[k]), c = cold_of(s);
        s.n_pages = 8;
        s.n_slots = 4;
        s.interval = 128;
        s.model_len = c.model_len = 400;
        start(&warm, &s);
        start(&cold, &c);
        int32_t session[3][400], n[3] = {0};
        int64_t cached = 0;
        for (int turn = 0; turn < 200 / TENTH; turn++) {
            int i = turn % 3;
            if (n[i] + 60 > 300) n[i] = 0;
            if (n[i] == 0)
                made_up(&warm, session[i], 20, (uint64_t)turn % 9), n[i] = 20; /* old ones come back */
            made_up(&warm, session[i] + n[i], 25, (uint64_t)turn % 4);
            n[i] += 25;
            ask(&warm, &a, session[i], n[i], 12);
            ask(&cold, &b, session[i], n[i], 12);
            same(&a, &b, 12);
            cached += a.n_cached;
            memcpy(session[i] + n[i], a.tokens, 12 * sizeof **session);
            n[i] += 12;
        }
        (void)stop(&cold);
        gm_engine_stats st = stop(&warm);
        print_message("%lld of %lld prompt tokens cached, %lld pages and %lld snapshots evicted\n",
                      (long long)cached, (long long)st.prompt_tokens, (long long)st.pages_evicted,
                      (long long)st.snapshots_evicted);
        assert_true(cached > 0 && st.pages_evicted > 0);
    }
}

/* The next prompt lacks part of the answer (its reasoning): it goes on at the last state before they part. */
static void the_next_turn_leaves_something_out(void **state)
{
    (void)state;
    static answer a, b;
    rig warm, cold;
    setup s = of(TINY), c = cold_of(s);
    s.interval = 0;
    start(&warm, &s);
    start(&cold, &c);
    int32_t prompt[400];
    made_up(&warm, prompt, 150, 1);
    ask(&warm, &a, prompt, 150, 100);
    memcpy(prompt + 150, a.tokens + 60, 40 * sizeof *prompt);
    made_up(&warm, prompt + 190, 30, 2);
    ask(&warm, &a, prompt, 220, 5);
    ask(&cold, &b, prompt, 220, 5);
    same(&a, &b, 5);
    assert_int_equal(a.n_cached, 128);
    ask(&warm, &a, prompt, 220, 5); /* the same again */
    same(&a, &b, 5);
    assert_int_equal(a.n_cached, 192);
    (void)stop(&cold);
    (void)stop(&warm);
}

/* Many at once with common beginnings in a cache for a fraction of them, greedy and sampled, some cancelled:
 * each gets what it would get alone. */
static void a_crowd_under_pressure(void **state)
{
    (void)state;
    enum { N = 24 };
    static const char *const paths[] = {GLM53, GLM52};
    static answer a[N], want;
    for (int k = 0; k < 2; k++) {
        rig warm, cold;
        setup s = of(paths[k]), c = cold_of(s);
        s.poison = false; /* a running request may be left out of a step */
        s.seqs = 6;
        s.n_slots = 9;
        s.n_pages = 14;
        s.batch_tokens = 96;
        start(&warm, &s);
        start(&cold, &c);
        static int32_t prompt[N][256];
        gm_rng rng;
        gm_rng_init(&rng, (uint64_t)k);
        for (int round = 0; round < CROWDS; round++) {
            int32_t n[N], n_out[N];
            for (int i = 0; i < N; i++) {
                made_up(&warm, prompt[i], 256,
                        gm_rng_below(&rng, 3)); /* one of three beginnings, then its own */
                int32_t common = 30 + (int32_t)gm_rng_below(&rng, 180);
                made_up(&warm, prompt[i] + common, 256 - common, gm_rng_below(&rng, 1000));
                n[i] = common + (int32_t)gm_rng_below(&rng, 40);
                n_out[i] = 1 + (int32_t)gm_rng_below(&rng, 120);
                a[i].cancel_at = 1 + (int32_t)gm_rng_below(&rng, 40);
                a[i].cancel_on = gm_rng_below(&rng, 5) ? NULL : warm.e;
                submit(&warm, &a[i], prompt[i], n[i], n_out[i], i % 2 ? 0.9f : 0);
            }
            for (int i = 0; i < N; i++) {
                wait_for(&a[i]);
                want.cancel_on = NULL;
                submit(&cold, &want, prompt[i], n[i], a[i].n ? a[i].n : 1, i % 2 ? 0.9f : 0);
                wait_for(&want);
                assert_true(a[i].n == n_out[i] || a[i].cancel_on);
                same(&a[i], &want, a[i].n);
            }
        }
        (void)stop(&cold);
        gm_engine_stats st = stop(&warm);
        print_message("%lld preemptions, %lld of %lld prompt tokens cached\n", (long long)st.preemptions,
                      (long long)st.cached_prompt_tokens, (long long)st.prompt_tokens);
        assert_true(st.preemptions > 0 && st.cached_prompt_tokens > 0 && st.pages_evicted > 0);
    }
}

/* Four requests of 200 tokens in space for one and a half: full length each, and what each would say alone.
 */
static void long_answers_under_pressure(void **state)
{
    (void)state;
    static const char *const paths[] = {GLM53, GLM52};
    static answer a[4], want;
    for (int k = 0; k < 2; k++) {
        rig warm, cold;
        setup s = of(paths[k]), c = cold_of(s);
        s.poison = false;
        s.seqs = 4;
        s.n_slots = 6;
        s.n_pages = 6;
        s.interval = 0;
        start(&warm, &s);
        start(&cold, &c);
        int32_t prompt[4][40];
        for (int i = 0; i < 4; i++) {
            made_up(&warm, prompt[i], 40, (uint64_t)i);
            submit(&warm, &a[i], prompt[i], 40, 200, i % 2 ? 0.8f : 0);
        }
        for (int i = 0; i < 4; i++) {
            wait_for(&a[i]);
            assert_int_equal(a[i].finish, GM_FINISH_LENGTH);
            assert_int_equal(a[i].n, 200);
            submit(&cold, &want, prompt[i], 40, 200, i % 2 ? 0.8f : 0);
            wait_for(&want);
            same(&a[i], &want, 200);
        }
        (void)stop(&cold);
        assert_true(stop(&warm).preemptions > 0);
    }
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
        cmocka_unit_test(every_resume_point),
        cmocka_unit_test(every_resume_point_in_small_chunks),
        cmocka_unit_test(prompts_at_page_boundaries),
        cmocka_unit_test(two_sessions_alternate),
        cmocka_unit_test(three_sessions_in_eight_pages),
        cmocka_unit_test(the_next_turn_leaves_something_out),
        cmocka_unit_test(a_crowd_under_pressure),
        cmocka_unit_test(long_answers_under_pressure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
