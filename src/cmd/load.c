/* From settings to a running engine, with the log lines that operators of such servers look for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cmd/cmd.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define BATCH_TOKENS_DEFAULT 2048
#define SEQS_DEFAULT 256

int64_t gm_available_memory(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

void gm_put_commas(gm_str *out, int64_t v)
{
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)v);
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0 && digits[i - 1] != '-') gm_str_putc(out, ',');
        gm_str_putc(out, digits[i]);
    }
}

static double seconds_since(int64_t t0)
{
    return 1e-6 * (double)(gm_now_us() - t0);
}

/* ---- sampling defaults ---- */

static void take_number(const json_t *g, const char *name, double *to, json_t *seen)
{
    const json_t *v = json_object_get(g, name);
    if (!json_is_number(v)) return;
    *to = json_number_value(v);
    json_object_set(seen, name, (json_t *)(uintptr_t)v);
}

static void take_integer(const json_t *g, const char *name, int64_t *to, json_t *seen)
{
    double d = NAN;
    take_number(g, name, &d, seen);
    if (isfinite(d)) *to = (int64_t)d;
}

static void take_defaults(gm_api_defaults *d, const json_t *g, json_t *seen)
{
    take_number(g, "temperature", &d->temperature, seen);
    take_number(g, "top_p", &d->top_p, seen);
    take_number(g, "min_p", &d->min_p, seen);
    take_number(g, "repetition_penalty", &d->repetition_penalty, seen);
    take_integer(g, "top_k", &d->top_k, seen);
    take_integer(g, "max_new_tokens", &d->max_new_tokens, seen);
}

static gm_status check_defaults(const gm_api_defaults *d, gm_error *err)
{
    if (d->temperature < 0 || d->temperature > 2 || !(d->top_p > 0) || d->top_p > 1 || d->min_p < 0 || d->min_p > 1 ||
        !(d->repetition_penalty > 0) || d->top_k < -1)
        return gm_fail(err, GM_EARG, "the default sampling values are out of bounds: temperature %g, top_p %g, top_k %lld, "
                                     "min_p %g, repetition_penalty %g",
                       d->temperature, d->top_p, (long long)d->top_k, d->min_p, d->repetition_penalty);
    return GM_OK;
}

/* The end tokens of generation_config.json always count, whatever --generation-config says: a model that is not stopped
 * at one of its own end tokens goes on to the length limit. */
static gm_status load_generation_config(gm_loaded *l, const gm_settings *s, gm_error *err)
{
    gm_str path = {0};
    json_t *own = NULL, *g = NULL, *seen = json_object();
    gm_status st = GM_OK;
    bool elsewhere = strcmp(s->generation_config, "auto") && strcmp(s->generation_config, "vllm");
    gm_str_printf(&path, "%s/generation_config.json", s->model);
    if (!access(gm_str_c(&path), R_OK)) st = gm_json_load(&own, gm_str_c(&path), NULL, err);
    if (!st && elsewhere) {
        gm_str_clear(&path);
        gm_str_printf(&path, "%s/generation_config.json", s->generation_config);
        st = gm_json_load(&g, gm_str_c(&path), NULL, err);
    } else if (!st && own && strcmp(s->generation_config, "vllm")) {
        g = json_incref(own);
    }
    if (!st && own && json_object_get(own, "eos_token_id") && !json_is_null(json_object_get(own, "eos_token_id")))
        st = gm_model_config_add_eos(&l->config, json_object_get(own, "eos_token_id"), "generation_config.json", err);
    l->defaults = GM_API_DEFAULTS;
    if (!st && g) take_defaults(&l->defaults, g, seen);
    if (!st && s->override_generation_config) {
        take_defaults(&l->defaults, s->override_generation_config, seen);
        take_integer(s->override_generation_config, "max_new_tokens", &l->defaults.max_new_tokens_cap, seen);
    }
    if (!st) st = check_defaults(&l->defaults, err);
    if (!st && l->defaults.top_k < 0) l->defaults.top_k = 0;
    if (!st && json_object_size(seen)) {
        gm_str text = {0};
        gm_chat_put_json(&text, seen);
        gm_info("Default vLLM sampling parameters have been overridden by %s: `%s`",
                s->override_generation_config ? "--override-generation-config and the model's `generation_config.json`"
                                              : "the model's `generation_config.json`",
                gm_str_c(&text));
        gm_str_fini(&text);
    }
    json_decref(own);
    json_decref(g);
    json_decref(seen);
    gm_str_fini(&path);
    return st;
}

static gm_status check_ranks(const gm_settings *s, gm_error *err)
{
    const struct {
        const char *flag;
        int64_t v;
    } sizes[] = {{"--tensor-parallel-size", s->tensor_parallel_size},
                 {"--pipeline-parallel-size", s->pipeline_parallel_size},
                 {"--data-parallel-size", s->data_parallel_size}};
    for (int i = 0; i < 3; i++)
        if (sizes[i].v != 1)
            return gm_fail(err, GM_ENOTSUP, "%s %lld: this version runs one rank; only 1 is possible", sizes[i].flag,
                           (long long)sizes[i].v);
    return GM_OK;
}

gm_status gm_load_front(gm_loaded *l, const gm_settings *s, gm_error *err)
{
    gm_status st = check_ranks(s, err);
    char *warning = NULL;
    if (st) return st;
    st = gm_model_config_load(&l->config, s->model, s->hf_overrides, err);
    if (st) return st;
    if (gm_settings_given(s, mla_norm_eps)) l->config.latent_eps = (float)s->mla_norm_eps;
    if ((st = load_generation_config(l, s, err))) return st;
    l->act = strcmp(s->activation_dtype, "bfloat16") ? GM_ACT_F32 : GM_ACT_BF16;
    bool follow = !strcmp(s->kv_cache_dtype, "auto") && !strncmp(s->dtype, "float", 5);
    if ((st = gm_kv_dtype_parse(&l->kv_dtype, follow ? "float32" : s->kv_cache_dtype, err))) return st;
    l->vocab_used = l->config.vocab_size;
    if (s->skip_tokenizer_init) return GM_OK;
    st = gm_tokenizer_open(&l->tokenizer, s->tokenizer ? s->tokenizer : s->model, err);
    if (st)
        return gm_context(err, st, "the tokenizer cannot be read (--skip-tokenizer-init serves token ids without one)");
    if (gm_tokenizer_size(l->tokenizer) < l->vocab_used) l->vocab_used = gm_tokenizer_size(l->tokenizer);
    st = gm_chat_detect(&l->chat, s->tokenizer ? s->tokenizer : s->model, &l->config, &warning, err);
    if (!st && warning) gm_warn("%s", warning);
    gm_free(warning);
    return st;
}

/* ---- sizes ---- */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static gm_status choose_length(gm_loaded *l, const gm_settings *s, gm_error *err)
{
    int64_t derived = l->config.max_positions;
    int64_t n = s->max_model_len > 0 ? s->max_model_len : derived;
    if (n > derived)
        return gm_fail(err, GM_EARG,
                       "User-specified max_model_len (%lld) is greater than the derived max_model_len "
                       "(max_position_embeddings=%lld in model's config.json).",
                       (long long)n, (long long)derived);
    l->model_len = (int32_t)n;
    return GM_OK;
}

static gm_status choose_batch(gm_loaded *l, const gm_settings *s, gm_error *err)
{
    int64_t seqs = s->max_num_seqs ? s->max_num_seqs : SEQS_DEFAULT;
    int64_t tokens = s->max_num_batched_tokens;
    if (!tokens) {
        tokens = BATCH_TOKENS_DEFAULT;
        if (s->max_num_seqs > tokens) tokens = s->max_num_seqs;
        if (!s->enable_chunked_prefill && l->model_len > tokens) tokens = l->model_len;
        tokens = min64(tokens, seqs * l->model_len);
    }
    if (!s->max_num_seqs) seqs = min64(seqs, tokens);
    if (tokens < seqs)
        return gm_fail(err, GM_EARG,
                       "max_num_batched_tokens (%lld) must be greater than or equal to max_num_seqs (%lld).",
                       (long long)tokens, (long long)seqs);
    if (!s->enable_chunked_prefill && tokens < l->model_len)
        return gm_fail(err, GM_EARG,
                       "max_num_batched_tokens (%lld) is smaller than max_model_len (%d). This effectively limits the maximum "
                       "sequence length to max_num_batched_tokens and makes it reject longer sequences.",
                       (long long)tokens, (int)l->model_len);
    if (s->long_prefill_token_threshold > l->model_len)
        return gm_fail(err, GM_EARG, "long_prefill_token_threshold (%lld) cannot be greater than the max_model_len (%d).",
                       (long long)s->long_prefill_token_threshold, (int)l->model_len);
    l->seqs = (int32_t)seqs;
    l->batch_tokens = (int32_t)tokens;
    return GM_OK;
}

static gm_status no_room(const gm_loaded *l, int64_t have, gm_error *err)
{
    double need = (double)gm_footprint_pages(&l->foot, l->model_len) * (double)l->foot.page_bytes;
    return gm_fail(err, GM_ECAPACITY,
                   "To serve at least one request with the model's max seq len (%d), (%.2f GiB KV cache is needed, which is "
                   "larger than the available KV cache memory (%.2f GiB). Based on the available memory, the estimated maximum "
                   "model length is %lld. Try increasing `kv_cache_memory_bytes` or decreasing `max_model_len` when "
                   "initializing the engine.",
                   (int)l->model_len, need / GIB, (double)have * (double)l->foot.page_bytes / GIB,
                   (long long)have * l->foot.page_tokens);
}

/* Slots for snapshots: as many as may run, within a quarter of the space, and not those that a request of the length
 * asked for would need as pages. */
static gm_status choose_snapshots(gm_loaded *l, const gm_settings *s, int64_t budget, gm_error *err)
{
    int64_t bytes = l->foot.slot_bytes, n = s->state_snapshot_slots, left = budget - l->seqs * bytes;
    l->n_snapshots = 0;
    if (bytes == 0 || !s->enable_prefix_caching) return GM_OK;
    if (n > 0 && n * bytes > left)
        return gm_fail(err, GM_ECAPACITY,
                       "--state-snapshot-slots %lld: %.2f GiB, and beside the slots of max_num_seqs=%d only %.2f GiB of the cache "
                       "are left",
                       (long long)n, (double)n * (double)bytes / GIB, (int)l->seqs, (double)left / GIB);
    if (n < 0) {
        int64_t quarter = budget / 4 / bytes;
        if (s->max_model_len > 0) left -= gm_footprint_pages(&l->foot, l->model_len) * l->foot.page_bytes;
        n = min64(l->seqs, quarter > 0 ? quarter : 1);
        n = left > 0 ? min64(n, left / bytes) : 0;
    }
    l->n_snapshots = (int32_t)n;
    return GM_OK;
}

/* State slots come first, one for each running sequence but at most half of the space, then those of snapshots; the rest
 * becomes pages, no more than all sequences of full length can use. With prefix caching that much again is of use. */
static gm_status choose_cache(gm_loaded *l, const gm_settings *s, gm_error *err)
{
    gm_footprint *f = &l->foot;
    *f = gm_footprint_compute(&l->config, &(gm_footprint_params){.latent_dtype = l->kv_dtype,
                                                                 .index_dtype = gm_kv_index_dtype(l->kv_dtype),
                                                                 .bf16 = l->act == GM_ACT_BF16});
    if (s->block_size && s->block_size != f->page_tokens)
        return gm_fail(err, GM_EARG, "--block-size %lld: the pages of this model hold %d tokens", (long long)s->block_size,
                       (int)f->page_tokens);
    int64_t free_bytes = gm_available_memory();
    bool given = s->kv_cache_memory_bytes > 0;
    int64_t budget = given ? s->kv_cache_memory_bytes : free_bytes / 4;
    if (!given && !free_bytes) budget = 1ll << 30;
    if (f->slot_bytes > 0 && l->seqs * f->slot_bytes > budget / 2) {
        int64_t fit = budget / 2 / f->slot_bytes;
        if (fit < 1) fit = 1;
        gm_warn("max_num_seqs is cut from %d to %lld: a state slot has %lld bytes and half of the cache is %.2f GiB",
                (int)l->seqs, (long long)fit, (long long)f->slot_bytes, (double)budget / 2 / GIB);
        l->seqs = (int32_t)fit;
    }
    gm_status st = choose_snapshots(l, s, budget, err);
    if (st) return st;
    l->n_slots = f->slot_bytes > 0 ? l->seqs + l->n_snapshots : 0;
    int64_t slots = l->n_slots * f->slot_bytes;
    int64_t pages = budget > slots ? (budget - slots) / f->page_bytes : 0;
    if (s->num_gpu_blocks_override) pages = s->num_gpu_blocks_override;
    int64_t want = (int64_t)l->seqs * gm_footprint_pages(f, l->model_len);
    if (!s->num_gpu_blocks_override) pages = min64(pages, want);
    pages = min64(pages, INT32_MAX / 2);
    if (pages < gm_footprint_pages(f, l->model_len)) {
        int64_t fit = pages * f->page_tokens;
        if (s->max_model_len > 0 || fit < 1) return no_room(l, pages, err);
        gm_info("Auto-fit max_model_len: reduced from %d to %lld to fit in available GPU memory (%.2f GiB available for KV "
                "cache)",
                (int)l->model_len, (long long)fit, (double)budget / GIB);
        l->model_len = (int32_t)fit;
    } else if (s->max_model_len < 0) {
        gm_info("Auto-fit max_model_len: full model context length %d fits in available GPU memory", (int)l->model_len);
    }
    l->n_pages = (int32_t)pages;
    if (!given && !s->num_gpu_blocks_override)
        gm_info("cache size on the CPU: the smaller of a quarter of the available memory (%.2f GiB of %.2f) and what "
                "max_num_seqs=%d requests of %d tokens need (%.2f GiB); --kv-cache-memory-bytes sets it",
                (double)budget / GIB, (double)free_bytes / GIB, (int)l->seqs, (int)l->model_len,
                ((double)want * (double)f->page_bytes + (double)slots) / GIB);
    return GM_OK;
}

/* ---- weights and engine ---- */

static void progress(void *user, int64_t tensors, int64_t all, int64_t bytes)
{
    int64_t *last = user, now = gm_now_us();
    if (now - *last < 5000000) return;
    *last = now;
    gm_info("Loading weights: %lld of %lld tensors, %.2f GiB", (long long)tensors, (long long)all, (double)bytes / GIB);
}

static gm_status load_weights(gm_loaded *l, const gm_settings *s, gm_error *err)
{
    gm_isa isa = GM_ISA_REF;
    int64_t t0 = gm_now_us(), last = t0;
    gm_weights_progress p = {progress, &last};
    gm_status st = gm_isa_parse(&isa, s->cpu_isa, err);
    if (!st) st = gm_device_open_cpu(&l->device, isa, (int)s->threads, err);
    if (st) return st;
    gm_info("device=cpu isa=%s threads=%d", gm_isa_name(gm_device_isa(l->device)), gm_device_threads(l->device));
    st = !strcmp(s->load_format, "dummy")
             ? gm_weights_dummy(&l->weights, &l->config, l->device, (uint64_t)s->seed, err)
             : gm_weights_open(&l->weights, s->model, &l->config, l->device, &p, err);
    if (st) return st;
    if (*gm_weights_skipped(l->weights)) gm_info("left unused: %s", gm_weights_skipped(l->weights));
    gm_info("Loading weights took %.2f seconds", seconds_since(t0));
    gm_info("Model loading took %.4f GiB memory and %.6f seconds", (double)gm_weights_bytes(l->weights) / GIB,
            seconds_since(t0));
    return GM_OK;
}

static void log_capacity(const gm_loaded *l)
{
    gm_str line = {0};
    int64_t tokens = (int64_t)l->n_pages * l->foot.page_tokens;
    double many = (double)tokens / l->model_len;
    int32_t n_running = l->n_slots - l->n_snapshots;
    if (n_running && many > n_running) many = n_running;
    double bytes = (double)l->n_pages * (double)l->foot.page_bytes + (double)l->n_slots * (double)l->foot.slot_bytes;
    gm_info("Available KV cache memory: %.2f GiB", bytes / GIB);
    gm_str_puts(&line, "GPU KV cache size: ");
    gm_put_commas(&line, tokens);
    gm_str_puts(&line, " tokens, Maximum concurrency for ");
    gm_put_commas(&line, l->model_len);
    gm_str_printf(&line, " tokens per request: %.2fx", many);
    gm_info("%s", gm_str_c(&line));
    gm_info("cache pages=%d page_tokens=%d page_bytes=%lld token_bytes=%.1f slots=%d snapshot_slots=%d slot_bytes=%lld "
            "dtype=%s",
            (int)l->n_pages, (int)l->foot.page_tokens, (long long)l->foot.page_bytes, l->foot.token_bytes, (int)n_running,
            (int)l->n_snapshots, (long long)l->foot.slot_bytes, gm_kv_dtype_name(l->kv_dtype));
    gm_str_fini(&line);
}

static void log_prefix_caching(const gm_loaded *l, const gm_settings *s)
{
    if (!s->enable_prefix_caching) return;
    if (l->foot.slot_bytes == 0)
        gm_info("prefix caching page_tokens=%d: a prompt resumes at any page boundary", (int)l->foot.page_tokens);
    else if (s->enable_chunked_prefill && l->n_snapshots == 0)
        gm_warn("prefix caching: there is no room for snapshots of recurrent state; prompts resume only while fewer than "
                "max_num_seqs requests run");
    else if (s->enable_chunked_prefill)
        gm_info("prefix caching page_tokens=%d snapshot_slots=%d snapshot_interval=%lld: a prompt resumes where a recurrent state "
                "was kept",
                (int)l->foot.page_tokens, (int)l->n_snapshots, (long long)s->state_snapshot_interval);
    else
        gm_warn("prefix caching: without chunked prefill no recurrent state is kept within a prompt; only turns that end behind "
                "a page boundary can be resumed");
}

static gm_engine_params engine_params(const gm_loaded *l, const gm_settings *s)
{
    gm_engine_params p = {.n_eos = l->config.n_eos,
                          .vocab_size = l->config.vocab_size,
                          .vocab_used = l->vocab_used,
                          .model_len_max = l->model_len,
                          .batch_tokens_max = l->batch_tokens,
                          .seqs_max = l->seqs,
                          .long_prefill_threshold = (int32_t)s->long_prefill_token_threshold,
                          .chunked_prefill = s->enable_chunked_prefill,
                          .reserve_full_prompt = s->scheduler_reserve_full_isl,
                          .watermark = s->watermark,
                          .policy = !strcmp(s->scheduling_policy, "priority") ? GM_POLICY_PRIORITY : GM_POLICY_FCFS,
                          .queued_reqs_max = (int32_t)s->max_num_queued_reqs,
                          .queued_tokens_max = s->max_num_queued_tokens,
                          .page_tokens = l->foot.page_tokens,
                          .n_pages = l->n_pages,
                          .n_slots = l->n_slots,
                          .prefix_caching = s->enable_prefix_caching,
                          .snapshot_interval = (int32_t)s->state_snapshot_interval,
                          .seed = (uint64_t)s->seed};
    memcpy(p.eos, l->config.eos, sizeof p.eos);
#ifndef NDEBUG
    p.alloc_guard = true;
#endif
    return p;
}

gm_status gm_load_engine(gm_loaded *l, const gm_settings *s, gm_error *err)
{
    gm_status st = choose_length(l, s, err);
    if (!st) st = choose_batch(l, s, err);
    if (!st) st = choose_cache(l, s, err);
    if (st) return st;
    gm_info("Using max model len %d", (int)l->model_len);
    if (s->enable_chunked_prefill)
        gm_info("Chunked prefill is enabled with max_num_batched_tokens=%d.", (int)l->batch_tokens);
    if ((st = load_weights(l, s, err))) return st;
    log_capacity(l);
    log_prefix_caching(l, s);
    int64_t t0 = gm_now_us();
    gm_model_params mp = {.act = l->act,
                          .kv_dtype = l->kv_dtype,
                          .index_dtype = gm_kv_index_dtype(l->kv_dtype),
                          .page_tokens = l->foot.page_tokens,
                          .n_pages = l->n_pages,
                          .n_slots = l->n_slots,
                          .batch_tokens_max = l->batch_tokens,
                          .batch_slices_max = l->seqs,
                          .positions_max = l->model_len};
    if ((st = gm_model_create(&l->model, l->weights, &mp, l->device, err))) return st;
    gm_info("workspace %.2f MiB for max_num_batched_tokens=%d max_num_seqs=%d", (double)gm_model_workspace_bytes(l->model) / 1048576,
            (int)l->batch_tokens, (int)l->seqs);
    l->backend = gm_backend_from_model(l->model);
    gm_engine_params p = engine_params(l, s);
    if ((st = gm_engine_create(&l->engine, &p, &l->backend, err))) return st;
    gm_info("init engine (profile, create kv cache, warmup model) took %.2f s", seconds_since(t0));
    return GM_OK;
}

void gm_loaded_fini(gm_loaded *l)
{
    gm_engine_destroy(l->engine);
    gm_model_destroy(l->model);
    gm_weights_close(l->weights);
    gm_device_close(l->device);
    gm_tokenizer_close(l->tokenizer);
    *l = (gm_loaded){0};
}
