#include "cmd/foresee.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool name_is(const char *word, size_t len, const char *name)
{
    if (strlen(name) != len) return false;
    for (size_t i = 0; i < len; i++)
        if ((word[i] == '_' ? '-' : word[i]) != name[i]) return false;
    return true;
}

static const gm_flag *find(const gm_flag *flags, const char *word, bool *negated)
{
    if (strncmp(word, "--", 2) != 0) return NULL;
    word += 2;
    size_t len = strcspn(word, "=");
    for (const gm_flag *f = flags; f->name; f++) {
        *negated = len > 3 && !strncmp(word, "no-", 3) && name_is(word + 3, len - 3, f->name) &&
                   (f->kind == GM_FLAG_BOOL || f->kind == GM_FLAG_IGNORED_BOOL);
        if (*negated || name_is(word, len, f->name)) return f;
    }
    return NULL;
}

/* Words that belong to the flag at argv[i]; -1: its value is missing. */
static int take(const gm_flag *f, bool negated, int argc, char **argv, int i)
{
    const char *eq = strchr(argv[i], '=');
    gm_str value = {0};
    int used = 1;
    if (f->kind == GM_FLAG_BOOL || f->kind == GM_FLAG_IGNORED_BOOL) {
        if (f->set) *f->set = !negated;
        return 1;
    }
    if (eq) gm_str_puts(&value, eq + 1);
    else if (i + 1 < argc) gm_str_puts(&value, argv[i + used++]);
    else return -1;
    while (f->kind == GM_FLAG_LIST && i + used < argc && strncmp(argv[i + used], "--", 2) != 0)
        gm_str_printf(&value, " %s", argv[i + used++]);
    if (f->text) {
        gm_free(*f->text);
        *f->text = gm_str_take(&value);
    }
    gm_str_fini(&value);
    return used;
}

static void show_help(const char *command, const gm_flag *flags)
{
    printf("usage: glimmer %s MODEL --machine MACHINE [flags of this command] [flags of serve]\n\n", command);
    for (const gm_flag *f = flags; f->name; f++)
        if (f->help)
            printf("  --%s%s%s\n        %s\n", f->name, f->unit ? " " : "", f->unit ? f->unit : "", f->help);
    printf("\nMODEL: glm-5.2 (BF16), glm-5.2-fp8, glm-5.3-flash (FP8), glm-5.3-flash-bf16, a checkpoint "
           "folder or a config.json.\n"
           "MACHINE: 8xMI300X, 8xMI325X, 8xH200, 8xH100, 8xB200, 8xMI355X, another count of these, or a "
           "machine file.\n"
           "Flags of serve are shown by: glimmer serve --help=all\n");
}

bool gm_foresee_parse(gm_settings *s, const char *command, const gm_flag *flags, int argc, char **argv,
                      int *status)
{
    char **rest = gm_new_array(char *, argc + 1);
    gm_error err = {0};
    int n = 0;
    bool go = true;
    *status = 2;
    for (int i = 0; i < argc && go;) {
        bool negated = false;
        const gm_flag *f = find(flags, argv[i], &negated);
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            show_help(command, flags);
            *status = 0;
            go = false;
        } else if (!f) {
            rest[n++] = argv[i++];
        } else {
            int used = take(f, negated, argc, argv, i);
            if (used < 0)
                fprintf(stderr, "glimmer %s: error: argument --%s: expected one argument\n", command,
                        f->name);
            go = used > 0;
            i += used;
        }
    }
    if (go && gm_settings_parse(s, GM_OPT_SERVE, n, rest, &err)) {
        fprintf(stderr, "glimmer %s: error: %s\n", command, err.message);
        go = false;
    }
    gm_free(rest);
    return go;
}

void gm_flags_free(const gm_flag *flags)
{
    for (const gm_flag *f = flags; f->name; f++)
        if (f->text) gm_free(*f->text);
}

gm_status gm_flag_int(int32_t *out, const char *flag, const char *text, int32_t lo, gm_error *err)
{
    int64_t v;
    if (!text) return GM_OK;
    gm_status st = gm_human_int(&v, text, err);
    if (st) return gm_context(err, st, "argument --%s", flag);
    if (v < lo || v > INT32_MAX / 2)
        return gm_fail(err, GM_EARG, "argument --%s: %lld is out of range, at least %d", flag, (long long)v,
                       (int)lo);
    *out = (int32_t)v;
    return GM_OK;
}

gm_status gm_flag_number(double *out, const char *flag, const char *text, double lo, gm_error *err)
{
    char *end;
    if (!text) return GM_OK;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || v < lo)
        return gm_fail(err, GM_EARG, "argument --%s: invalid value: '%.64s'", flag, text);
    *out = v;
    return GM_OK;
}

static gm_status choose_layout(gm_layout *l, const gm_settings *s, const gm_model_config *c,
                               const gm_machine *m, bool kv_shard, gm_error *err)
{
    bool tp_given = gm_settings_given(s, tensor_parallel_size),
         dp_given = gm_settings_given(s, data_parallel_size);
    *l = (gm_layout){
        .dp = (int32_t)s->data_parallel_size, .tp = (int32_t)s->tensor_parallel_size, .kv_shard = kv_shard};
    if (!tp_given && !dp_given) l->tp = m->n_gpus;
    l->ep = s->enable_expert_parallel && l->dp * l->tp > 1;
    if (s->pipeline_parallel_size > 1)
        return gm_fail(err, GM_ENOTSUP, "pipeline parallelism is not foreseen: --pipeline-parallel-size 1");
    if ((int64_t)l->dp * l->tp > m->n_gpus)
        return gm_fail(err, GM_EARG,
                       "World size (%lld) is larger than the number of available GPUs (%d) in this node.",
                       (long long)l->dp * l->tp, (int)m->n_gpus);
    if (c->n_heads % l->tp)
        return gm_fail(err, GM_EARG,
                       "Total number of attention heads (%d) must be divisible by tensor parallel size (%d).",
                       (int)c->n_heads, (int)l->tp);
    return GM_OK;
}

gm_status gm_foresee_server(gm_layout *l, gm_sim_params *p, const gm_settings *s, const gm_model_config *c,
                            const gm_machine *m, const char *engine, bool kv_shard, gm_error *err)
{
    enum { BATCH_TOKENS = 8192, SEQS = 1024, SEQS_SMALL = 256 };
    bool vllm = !engine || !strcmp(engine, "vllm");
    if (!vllm && strcmp(engine, "glimmer"))
        return gm_fail(err, GM_EARG, "argument --engine: invalid choice: '%.32s' (choose from vllm, glimmer)",
                       engine);
    if (kv_shard && vllm) return gm_fail(err, GM_EARG, "--kv-shard is a layout of --engine glimmer");
    gm_status st = choose_layout(l, s, c, m, kv_shard, err);
    gm_kv_dtype dtype;
    if (!st) st = gm_kv_dtype_parse(&dtype, s->kv_cache_dtype, err);
    if (st) return st;
    *p = (gm_sim_params){.limits = {.memory_share = s->gpu_memory_utilization,
                                    .batch_tokens = (int32_t)s->max_num_batched_tokens,
                                    .seqs = (int32_t)s->max_num_seqs,
                                    .model_len = (int32_t)s->max_model_len,
                                    .kv_dtype = dtype,
                                    .engine = vllm ? GM_ENGINE_VLLM : GM_ENGINE_GLIMMER},
                         .long_prefill_threshold = (int32_t)s->long_prefill_token_threshold,
                         .chunked_prefill = s->enable_chunked_prefill,
                         .reserve_full_prompt = s->scheduler_reserve_full_isl,
                         .watermark = s->watermark,
                         .policy =
                             !strcmp(s->scheduling_policy, "priority") ? GM_POLICY_PRIORITY : GM_POLICY_FCFS,
                         .n_pages = (int32_t)s->num_gpu_blocks_override,
                         .front_request_ns = vllm ? GM_SIM_FRONT_REQUEST_NS : 0,
                         .front_token_ns = vllm ? GM_SIM_FRONT_TOKEN_NS : 0};
    gm_server_limits *k = &p->limits;
    if (k->model_len <= 0) k->model_len = c->max_positions;
    if (k->batch_tokens <= 0) k->batch_tokens = BATCH_TOKENS;
    if (k->seqs <= 0) k->seqs = m->mem_bytes >= 70e9 ? SEQS : SEQS_SMALL;
    if (!gm_settings_given(s, max_num_seqs) && k->seqs > k->batch_tokens) k->seqs = k->batch_tokens;
    return GM_OK;
}
