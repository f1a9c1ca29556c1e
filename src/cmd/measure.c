/* A machine file of this machine's CPU: short bursts through the real engine, and the constants that foresee
 * them. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/foresee.h"
#include "plan/fit.h"

/* Bursts that tell the constants apart: lone decodes, batches, prompts. */
static const struct {
    int32_t n_in, n_out, concurrency;
} bursts[] = {{16, 96, 1}, {16, 96, 4}, {16, 96, 12}, {16, 64, 32}, {256, 4, 2}, {384, 2, 8}, {128, 48, 16}};
enum { N_BURSTS = sizeof bursts / sizeof *bursts, REPEATS = 5 };

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int32_t left;
    bool failed;
} waiter;

static void on_event(void *user, const gm_event *ev)
{
    waiter *w = user;
    if (ev->kind != GM_EVENT_FINISH) return;
    pthread_mutex_lock(&w->lock);
    w->left--;
    w->failed |= ev->finish != GM_FINISH_LENGTH;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

/* Seconds that the burst took. */
static gm_status run_burst(double *seconds, gm_loaded *l, int b, gm_error *err)
{
    waiter w = {.left = bursts[b].concurrency};
    int32_t *ids = gm_new_array(int32_t, bursts[b].n_in);
    gm_status st = GM_OK;
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.cond, NULL);
    int64_t begun = gm_now_us();
    for (int32_t i = 0; i < bursts[b].concurrency && !st; i++) {
        gm_submit s = {.prompt = ids,
                       .n_prompt = bursts[b].n_in,
                       .sampling = GM_SAMPLING_DEFAULT,
                       .sink = {on_event, &w}};
        gm_request_id id;
        for (int32_t k = 0; k < s.n_prompt; k++) ids[k] = (i * 7919 + k * 31 + 5) % l->vocab_used;
        s.sampling.temperature = 0;
        s.sampling.ignore_eos = true;
        s.sampling.max_tokens = bursts[b].n_out;
        st = gm_engine_submit(l->engine, &s, &id, err);
        if (st) { /* those before it are still waited for */
            pthread_mutex_lock(&w.lock);
            w.left -= bursts[b].concurrency - i;
            pthread_mutex_unlock(&w.lock);
        }
    }
    pthread_mutex_lock(&w.lock);
    while (w.left > 0) pthread_cond_wait(&w.cond, &w.lock);
    pthread_mutex_unlock(&w.lock);
    *seconds = 1e-6 * (double)(gm_now_us() - begun);
    pthread_mutex_destroy(&w.lock);
    pthread_cond_destroy(&w.cond);
    gm_free(ids);
    if (!st && w.failed) st = gm_fail(err, GM_EDEVICE, "a request of the measurement did not run to its end");
    return st;
}

/* The fastest of the repeats, as output tokens a second: other work on the machine slows a run down, nothing
 * speeds it up. */
static gm_status measure_point(gm_fit_point *p, gm_loaded *l, int b, gm_error *err)
{
    double best = INFINITY, t;
    gm_status st = GM_OK;
    for (int i = 0; i < REPEATS && !st; i++) {
        st = run_burst(&t, l, b, err);
        if (!st) best = fmin(best, t);
    }
    if (st) return st;
    *p = (gm_fit_point){.shape = "measured",
                        .layout = {.dp = 1, .tp = 1},
                        .kv_dtype = l->kv_dtype,
                        .n_in = bursts[b].n_in,
                        .n_out = bursts[b].n_out,
                        .concurrency = bursts[b].concurrency,
                        .output_tok_s = bursts[b].concurrency * bursts[b].n_out / best};
    return GM_OK;
}

/* Bytes a second of copying, read and written counted, beyond any cache. */
static double copy_bandwidth(void)
{
    enum { SIZE = 256 << 20 };
    char *a = gm_pages_alloc(SIZE), *b = gm_pages_alloc(SIZE);
    double best = 1e9;
    if (a && b) {
        memset(a, 1, SIZE);
        for (int i = 0; i < 4; i++) {
            int64_t begun = gm_now_us();
            memcpy(b, a, SIZE);
            double s = 1e-6 * (double)(gm_now_us() - begun);
            if (s > 0) best = fmax(best, 2.0 * SIZE / s);
        }
    }
    if (a) gm_pages_free(a, SIZE);
    if (b) gm_pages_free(b, SIZE);
    return best;
}

static void start_machine(gm_machine *m)
{
    *m = (gm_machine){.n_gpus = 1,
                      .mem_bytes = fmax((double)gm_available_memory(), 1e9),
                      .mem_bw = copy_bandwidth(),
                      .mem_eff = 1,
                      .flops_bf16 = 1e12,
                      .flops_fp8 = 1e12,
                      .link_bw = 1e9,
                      .reduce_value_bytes = 4,
                      .layer_us = 30,
                      .flop_eff = 0.02,
                      .token_work = 20,
                      .matmul_eff = 0.5,
                      .expert_spread = 10};
    snprintf(m->name, sizeof m->name, "cpu");
#define X(field, unit, what)                                                                                 \
    snprintf(m->field##_source, sizeof m->field##_source, "a round number: only flop_eff times it counts");
    GM_MACHINE_SPECS(X)
#undef X
#define X(field, unit, what)                                                                                 \
    snprintf(m->field##_source, sizeof m->field##_source,                                                    \
             "fitted to bursts through the engine on this machine");
    GM_MACHINE_FITTED(X)
#undef X
#define X(field, unit, what)                                                                                 \
    snprintf(m->field##_source, sizeof m->field##_source, "none: the cache has a size of its own on a CPU");
    GM_MACHINE_RESERVES(X)
#undef X
    snprintf(m->mem_bytes_source, sizeof m->mem_bytes_source, "available memory when it was measured");
    snprintf(m->mem_bw_source, sizeof m->mem_bw_source,
             "copying 256 MiB with one thread, read and write counted");
    snprintf(m->mem_eff_source, sizeof m->mem_eff_source, "1: mem_bw is a measured rate");
    snprintf(m->link_bw_source, sizeof m->link_bw_source, "one rank: no link is used");
    snprintf(m->reduce_value_bytes_source, sizeof m->reduce_value_bytes_source,
             "one rank: nothing is reduced");
}

static gm_status write_machine(const gm_machine *m, const char *path, gm_error *err)
{
    json_t *v = gm_machine_json(m);
    int failed = json_dump_file(v, path, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    json_decref(v);
    return failed ? gm_fail(err, GM_EIO, "%s: cannot be written", path) : GM_OK;
}

static void print_result(const gm_fit_set *set, const gm_loaded *l, const char *path)
{
    gm_fit_error e = gm_fit_error_of(set, NULL);
    printf("%6s %6s %6s %12s %12s %8s\n", "input", "output", "conc.", "measured", "predicted", "error");
    for (int32_t i = 0; i < set->n; i++) {
        const gm_fit_point *p = &set->points[i];
        printf("%6d %6d %6d %12.2f %12.2f %+7.2f%%\n", (int)p->n_in, (int)p->n_out, (int)p->concurrency,
               p->output_tok_s, p->predicted, 100 * (p->predicted / p->output_tok_s - 1));
    }
    printf("mean %.2f %%, worst %.2f %%; written to %s. To foresee this server:\n"
           "  glimmer simulate MODEL --machine %s --engine glimmer --max-model-len %d "
           "--max-num-batched-tokens %d --max-num-seqs %d "
           "--num-gpu-blocks-override %d\n",
           100 * e.mean, 100 * e.worst, path, path, (int)l->model_len, (int)l->batch_tokens, (int)l->seqs,
           (int)l->n_pages);
}

gm_status gm_measure_cpu(const gm_settings *s, const char *path, gm_error *err)
{
    enum { ROUNDS = 100 };
    gm_loaded *l = gm_new(gm_loaded);
    gm_machine m;
    gm_fit_set set = {.points = gm_new_array(gm_fit_point, N_BURSTS), .n = N_BURSTS};
    gm_log_set_level(GM_LOG_WARNING);
    gm_status st = gm_load_front(l, s, err);
    if (!st) st = gm_load_engine(l, s, err);
    for (int b = 0; b < N_BURSTS && !st; b++) st = measure_point(&set.points[b], l, b, err);
    if (!st) {
        start_machine(&m);
        set.limits = (gm_server_limits){.memory_share = 0.9,
                                        .batch_tokens = l->batch_tokens,
                                        .seqs = l->seqs,
                                        .model_len = l->model_len,
                                        .kv_dtype = l->kv_dtype,
                                        .engine = GM_ENGINE_GLIMMER};
        st = gm_fit_run(&m, &set, &l->config, NULL, ROUNDS, err);
    }
    if (!st) st = write_machine(&m, path, err);
    if (!st) print_result(&set, l, path);
    gm_fit_set_fini(&set);
    gm_loaded_fini(l);
    gm_free(l);
    return st;
}
