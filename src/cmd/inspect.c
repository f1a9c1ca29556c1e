/* What a checkpoint holds, what is wrong with it, and what it costs. Every check runs, also after one has failed. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/cmd.h"
#include "io/safetensors.h"
#include "model/weights.h"

typedef struct report {
    int problems;
} report;

static void problem(report *r, const char *what, const char *why)
{
    r->problems++;
    printf("  PROBLEM %s: %s\n", what, why);
}

static void show_config(const gm_model_config *c)
{
    int32_t kda = gm_model_config_count(c, GM_MIXER_KDA), mla = gm_model_config_count(c, GM_MIXER_MLA), moe = 0;
    for (int32_t i = 0; i < c->n_layers; i++) moe += c->layers[i].ffn == GM_FFN_MOE;
    printf("model\n  architecture      %s (%s)\n", c->architecture, c->model_type);
    printf("  layers            %d: %d MLA (%d with an indexer of their own), %d KDA; %d dense, %d MoE; %d MTP\n",
           (int)c->n_layers, (int)mla, (int)gm_model_config_index_owners(c), (int)kda, (int)(c->n_layers - moe), (int)moe,
           (int)c->n_mtp_layers);
    printf("  sizes             hidden %d, vocabulary %d, positions %d, residual streams %d\n", (int)c->d_model,
           (int)c->vocab_size, (int)c->max_positions, (int)c->n_streams);
    printf("  attention         %d heads, latent %d + rope %d, q_lora %d, nope %d, v %d\n", (int)c->n_heads, (int)c->d_latent,
           (int)c->d_rope, (int)c->q_lora_rank, (int)c->d_nope, (int)c->d_v);
    printf("  indexer           %d heads of %d, top %d tokens, pools of %d\n", (int)c->index_n_heads, (int)c->index_d_head,
           (int)c->index_topk, (int)c->index_pool);
    if (kda) printf("  KDA               %d heads of %d, convolution %d\n", (int)c->kda_n_heads, (int)c->kda_d_head, (int)c->kda_conv);
    if (moe)
        printf("  experts           %d, %d active, %d shared, width %d\n", (int)c->n_experts, (int)c->n_active, (int)c->n_shared,
               (int)c->d_expert);
    printf("  end tokens       ");
    for (int32_t i = 0; i < c->n_eos; i++) printf(" %d", (int)c->eos[i]);
    printf("\n");
}

static void show_costs(const gm_model_config *c, const gm_settings *s)
{
    static const gm_kv_dtype kinds[] = {GM_KV_BF16, GM_KV_FP8, GM_KV_F32};
    int64_t len = s->context ? s->context : c->max_positions;
    printf("cache\n");
    for (int i = 0; i < 3; i++) {
        gm_footprint f = gm_footprint_compute(c, &(gm_footprint_params){kinds[i], gm_kv_index_dtype(kinds[i]), false});
        double seq = (double)gm_footprint_pages(&f, len) * (double)f.page_bytes + (double)f.slot_bytes;
        printf("  %-17s %.1f bytes a token (pages of %d tokens, %lld bytes), %lld bytes a running sequence; one of %lld tokens: "
               "%.3f GiB\n",
               gm_kv_dtype_name(kinds[i]), f.token_bytes, (int)f.page_tokens, (long long)f.page_bytes,
               (long long)f.slot_bytes, (long long)len, seq / (1024.0 * 1024 * 1024));
        if (!i)
            printf("  parameters        %.3f billion, %.3f billion active for a token\n", (double)f.params_total / 1e9,
                   (double)f.params_active / 1e9);
    }
}

static void show_tensors(const gm_checkpoint *c, bool each)
{
    int64_t n[16] = {0}, bytes[16] = {0};
    for (int64_t i = 0; i < gm_checkpoint_count(c); i++) {
        const gm_tensor_entry *t = gm_checkpoint_at(c, i);
        n[t->dtype]++;
        bytes[t->dtype] += t->bytes;
        if (!each) continue;
        printf("  %-90s %-8s [", t->name, gm_st_dtype_name(t->dtype));
        for (int32_t d = 0; d < t->n_dims; d++) printf(d ? ", %lld" : "%lld", (long long)t->shape[d]);
        printf("]\n");
    }
    printf("tensors\n  %lld in %d files, %.3f GiB\n", (long long)gm_checkpoint_count(c), (int)gm_checkpoint_files(c),
           (double)gm_checkpoint_bytes(c) / (1024.0 * 1024 * 1024));
    for (int i = 0; i < 16; i++)
        if (n[i])
            printf("  %-8s %6lld tensors, %.3f GiB\n", gm_st_dtype_name((gm_st_dtype)i), (long long)n[i],
                   (double)bytes[i] / (1024.0 * 1024 * 1024));
    if (*gm_checkpoint_strays(c)) printf("  not in the index, not read: %s\n", gm_checkpoint_strays(c));
}

static void inspect_text(report *r, const char *dir, const gm_model_config *c)
{
    gm_tokenizer *t = NULL;
    gm_error err = {0};
    gm_chat_format f;
    char *warning = NULL;
    printf("text\n");
    if (gm_tokenizer_open(&t, dir, &err)) {
        problem(r, "tokenizer", err.message);
    } else {
        printf("  tokenizer         %d ids, longest token %d characters\n", (int)gm_tokenizer_size(t),
               (int)gm_tokenizer_longest_token(t));
        if (c && gm_tokenizer_size(t) > c->vocab_size) problem(r, "tokenizer", "it has more ids than the model has rows");
    }
    gm_tokenizer_close(t);
    if (!c) return;
    if (gm_chat_detect(&f, dir, c, &warning, &err)) problem(r, "chat template", err.message);
    else printf("  chat format       %s%s%s\n", gm_chat_format_name(f), warning ? "; " : "", warning ? warning : "");
    gm_free(warning);
}

static void inspect_weights(report *r, const char *dir, const gm_model_config *c)
{
    gm_device *d = NULL;
    gm_weights *w = NULL;
    gm_error err = {0};
    if (gm_device_open_cpu(&d, GM_ISA_REF, 1, &err) || gm_weights_open(&w, dir, c, d, NULL, &err)) {
        problem(r, "weights", err.message);
    } else {
        printf("  every tensor the model needs is there: %.3f GiB in use\n",
               (double)gm_weights_bytes(w) / (1024.0 * 1024 * 1024));
        if (*gm_weights_skipped(w)) printf("  left unused: %s\n", gm_weights_skipped(w));
    }
    gm_weights_close(w);
    gm_device_close(d);
}

int gm_cmd_inspect(int argc, char **argv)
{
    gm_settings s;
    gm_model_config c;
    gm_checkpoint *cp = NULL;
    gm_error err = {0};
    report r = {0};
    int status;
    if (!gm_cmd_settings(&s, GM_OPT_INSPECT, argc, argv, &status)) return status;
    bool ok = !gm_model_config_load(&c, s.model, s.hf_overrides, &err);
    printf("%s\n", s.model);
    if (ok) {
        gm_str path = {0};
        json_t *g = NULL;
        gm_str_printf(&path, "%s/generation_config.json", s.model);
        if (!access(gm_str_c(&path), R_OK)) {
            if (gm_json_load(&g, gm_str_c(&path), NULL, &err) ||
                (json_object_get(g, "eos_token_id") &&
                 gm_model_config_add_eos(&c, json_object_get(g, "eos_token_id"), "generation_config.json", &err)))
                problem(&r, "generation_config.json", err.message);
        }
        json_decref(g);
        gm_str_fini(&path);
        show_config(&c);
        show_costs(&c, &s);
    } else {
        problem(&r, "config.json", err.message);
    }
    if (gm_checkpoint_open(&cp, s.model, &err)) problem(&r, "tensor files", err.message);
    else show_tensors(cp, s.tensors);
    if (ok && cp) inspect_weights(&r, s.model, &c);
    gm_checkpoint_close(cp);
    inspect_text(&r, s.model, ok ? &c : NULL);
    if (r.problems) printf("%d problem%s\n", r.problems, r.problems == 1 ? "" : "s");
    else printf("no problem found\n");
    gm_settings_fini(&s);
    return r.problems ? 1 : 0;
}
