#include "config/model_config.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Reads keys of one object; the first failure sticks and the calls after it do nothing. */
typedef struct reader {
    const json_t *obj;
    const char *what; /* "config.json text_config" */
    gm_error *err;
    gm_status st;
} reader;

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {"object", "array", "string", "integer", "real", "true", "false", "null"};
    return names[json_typeof(v)];
}

/* NULL for an absent key and for null, which Hugging Face writes for "not set". */
static const json_t *get(const reader *r, const char *key)
{
    const json_t *v = json_object_get(r->obj, key);
    return json_is_null(v) ? NULL : v;
}

static void wrong_type(reader *r, const char *key, const json_t *v, const char *wanted)
{
    if (!r->st) r->st = gm_fail(r->err, GM_EFORMAT, "%s: %s is to be %s, found %s", r->what, key, wanted, type_name(v));
}

static const json_t *need(reader *r, const char *key)
{
    const json_t *v = get(r, key);
    if (!v && !r->st) r->st = gm_fail(r->err, GM_EFORMAT, "%s: required key '%s' is missing", r->what, key);
    return v;
}

static int32_t as_int(reader *r, const char *key, const json_t *v, int64_t min, int64_t max)
{
    if (r->st) return 0;
    json_int_t n = 0;
    if (json_is_integer(v)) n = json_integer_value(v);
    else if (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)) && fabs(json_real_value(v)) < 1e15)
        n = (json_int_t)json_real_value(v);
    else {
        wrong_type(r, key, v, "an integer");
        return 0;
    }
    if (n < min || n > max) {
        r->st = gm_fail(r->err, GM_EFORMAT, "%s: %s is %lld, expected %lld to %lld", r->what, key, (long long)n,
                        (long long)min, (long long)max);
        return 0;
    }
    return (int32_t)n;
}

static int32_t need_int(reader *r, const char *key, int64_t min, int64_t max)
{
    const json_t *v = need(r, key);
    return v ? as_int(r, key, v, min, max) : 0;
}

static int32_t opt_int(reader *r, const char *key, int64_t min, int64_t max, int32_t otherwise)
{
    const json_t *v = get(r, key);
    return v ? as_int(r, key, v, min, max) : otherwise;
}

static float as_float(reader *r, const char *key, const json_t *v, double min, double max)
{
    if (r->st) return 0;
    if (!json_is_number(v)) {
        wrong_type(r, key, v, "a number");
        return 0;
    }
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        r->st = gm_fail(r->err, GM_EFORMAT, "%s: %s is %g, expected %g to %g", r->what, key, x, min, max);
    return (float)x;
}

static float need_float(reader *r, const char *key, double min, double max)
{
    const json_t *v = need(r, key);
    return v ? as_float(r, key, v, min, max) : 0;
}

static bool opt_bool(reader *r, const char *key, bool otherwise)
{
    const json_t *v = get(r, key);
    if (!v) return otherwise;
    if (!json_is_boolean(v)) wrong_type(r, key, v, "true or false");
    return json_is_true(v);
}

static bool need_bool(reader *r, const char *key)
{
    const json_t *v = need(r, key);
    return v ? opt_bool(r, key, false) : false;
}

/* A key that may be absent, but if it is there must say what we implement. */
static void only_string(reader *r, const char *key, const char *implemented)
{
    const json_t *v = get(r, key);
    if (!v || r->st) return;
    const char *s = json_string_value(v);
    if (!s || strcmp(s, implemented) != 0)
        r->st = gm_fail(r->err, GM_ENOTSUP, "%s: %s is '%s'; only '%s' is implemented", r->what, key,
                        s ? s : type_name(v), implemented);
}

static void only_bool(reader *r, const char *key, bool implemented)
{
    const json_t *v = get(r, key);
    if (v && opt_bool(r, key, implemented) != implemented && !r->st)
        r->st = gm_fail(r->err, GM_ENOTSUP, "%s: %s is %s, which is not implemented", r->what, key,
                        implemented ? "false" : "true");
}

/* A list of at least n_layers strings. Longer lists are cut, as Hugging Face does when num_hidden_layers is lowered. */
static const json_t *layer_list(reader *r, const char *key, int32_t n_layers)
{
    const json_t *v = get(r, key);
    if (!v || r->st) return NULL;
    if (!json_is_array(v)) {
        wrong_type(r, key, v, "a list");
        return NULL;
    }
    if (json_array_size(v) < (size_t)n_layers) {
        r->st = gm_fail(r->err, GM_EFORMAT, "%s: %s has %zu entries, num_hidden_layers is %d", r->what, key,
                        json_array_size(v), n_layers);
        return NULL;
    }
    return v;
}

static const char *layer_string(reader *r, const char *key, const json_t *list, int32_t i)
{
    const json_t *v = json_array_get(list, (size_t)i);
    if (!json_is_string(v)) {
        if (!r->st) r->st = gm_fail(r->err, GM_EFORMAT, "%s: %s[%d] is to be a string, found %s", r->what, key, i, type_name(v));
        return "";
    }
    return json_string_value(v);
}

static void unknown_kind(reader *r, const char *key, int32_t i, const char *found, const char *known)
{
    if (!r->st) r->st = gm_fail(r->err, GM_ENOTSUP, "%s: %s[%d] is '%s'; known are %s", r->what, key, i, found, known);
}

/* linear_attn_config names the layers of each kind: it decides where layer_types is absent, else it must agree. */
static void mixers_from_ids(reader *r, gm_model_config *c, const json_t *ids, const char *key, gm_mixer mixer,
                            bool check)
{
    size_t i;
    json_t *v;
    if (!json_is_array(ids)) {
        if (ids) wrong_type(r, key, ids, "a list");
        return;
    }
    json_array_foreach((json_t *)(uintptr_t)ids, i, v)
    {
        int32_t layer = as_int(r, key, v, 0, GM_LAYERS_MAX - 1);
        if (r->st) return;
        if (layer >= c->n_layers) continue;
        if (check && c->layers[layer].mixer != mixer) {
            r->st = gm_fail(r->err, GM_EFORMAT, "%s: linear_attn_config.%s names layer %d, layer_types says '%s'", r->what,
                            key, layer, mixer == GM_MIXER_KDA ? "deepseek_sparse_attention" : "linear_attention");
            return;
        }
        c->layers[layer].mixer = mixer;
    }
}

static void read_mixers(reader *r, gm_model_config *c)
{
    const json_t *list = layer_list(r, "layer_types", c->n_layers), *linear = get(r, "linear_attn_config");
    for (int32_t i = 0; list && i < c->n_layers; i++) {
        const char *s = layer_string(r, "layer_types", list, i);
        if (strcmp(s, "linear_attention") == 0) c->layers[i].mixer = GM_MIXER_KDA;
        else if (strcmp(s, "deepseek_sparse_attention") == 0 || strcmp(s, "full_attention") == 0)
            c->layers[i].mixer = GM_MIXER_MLA;
        else unknown_kind(r, "layer_types", i, s, "'linear_attention', 'deepseek_sparse_attention', 'full_attention'");
    }
    if (c->family == GM_FAMILY_GLM_MOE_DSA) {
        for (int32_t i = 0; i < c->n_layers; i++) {
            if (list && c->layers[i].mixer == GM_MIXER_KDA) unknown_kind(r, "layer_types", i, "linear_attention", "'deepseek_sparse_attention'");
            c->layers[i].mixer = GM_MIXER_MLA;
        }
        return;
    }
    const json_t *kda = json_object_get(linear, "kda_layers"), *full = json_object_get(linear, "full_attn_layers");
    if (!list && !(kda && full)) {
        need(r, "layer_types");
        return;
    }
    if (!list)
        for (int32_t i = 0; i < c->n_layers; i++) c->layers[i].mixer = GM_MIXER_KDA;
    mixers_from_ids(r, c, full, "full_attn_layers", GM_MIXER_MLA, list != NULL);
    mixers_from_ids(r, c, kda, "kda_layers", GM_MIXER_KDA, true);
}

static void read_ffns(reader *r, gm_model_config *c)
{
    const json_t *list = layer_list(r, "mlp_layer_types", c->n_layers);
    int32_t dense = opt_int(r, "first_k_dense_replace", 0, GM_LAYERS_MAX, -1);
    if (!list && dense < 0 && !r->st) {
        need(r, "mlp_layer_types");
        return;
    }
    if (opt_int(r, "moe_layer_freq", 1, GM_LAYERS_MAX, 1) != 1 && !r->st)
        r->st = gm_fail(r->err, GM_ENOTSUP, "%s: moe_layer_freq other than 1 is not implemented", r->what);
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (!list) {
            c->layers[i].ffn = i < dense ? GM_FFN_DENSE : GM_FFN_MOE;
            continue;
        }
        const char *s = layer_string(r, "mlp_layer_types", list, i);
        if (strcmp(s, "dense") == 0) c->layers[i].ffn = GM_FFN_DENSE;
        else if (strcmp(s, "sparse") == 0) c->layers[i].ffn = GM_FFN_MOE;
        else unknown_kind(r, "mlp_layer_types", i, s, "'dense', 'sparse'");
    }
}

/* index_topk_pattern is a string of F and S, or a list like indexer_types. */
static bool pattern_is_full(reader *r, const json_t *pattern, int32_t i)
{
    if (json_is_string(pattern)) {
        char k = (size_t)i < json_string_length(pattern) ? json_string_value(pattern)[i] : 0;
        char text[2] = {k, 0};
        if (k != 'F' && k != 'S') unknown_kind(r, "index_topk_pattern", i, k ? text : "missing", "'F', 'S'");
        return k == 'F';
    }
    const char *s = layer_string(r, "index_topk_pattern", pattern, i);
    if (strcmp(s, "full") != 0 && strcmp(s, "shared") != 0) unknown_kind(r, "index_topk_pattern", i, s, "'full', 'shared'");
    return strcmp(s, "full") == 0;
}

/* Which layers own an indexer: indexer_types, else the pattern, else
 * owner(i) <=> max(i - offset + 1, 0) mod freq == 0. */
static void read_indexers(reader *r, gm_model_config *c)
{
    const json_t *list = layer_list(r, "indexer_types", c->n_layers), *pattern = get(r, "index_topk_pattern");
    int32_t freq = opt_int(r, "index_topk_freq", 0, GM_LAYERS_MAX, 1);
    int32_t offset = opt_int(r, "index_skip_topk_offset", 0, GM_LAYERS_MAX, 2);
    if (freq < 1) freq = 1;
    int32_t owner = -1;
    for (int32_t i = 0; i < c->n_layers && !r->st; i++) {
        bool full;
        if (list) {
            const char *s = layer_string(r, "indexer_types", list, i);
            full = strcmp(s, "full") == 0;
            if (!full && strcmp(s, "shared") != 0) unknown_kind(r, "indexer_types", i, s, "'full', 'shared'");
        } else if (pattern) {
            full = pattern_is_full(r, pattern, i);
        } else {
            int32_t k = i - offset + 1;
            full = (k > 0 ? k : 0) % freq == 0;
        }
        if (c->layers[i].mixer != GM_MIXER_MLA) {
            c->layers[i].index = GM_INDEX_NONE;
            continue;
        }
        c->layers[i].index = full ? GM_INDEX_OWN : GM_INDEX_SHARED;
        if (full) owner = i;
        else if (owner < 0 && !r->st)
            r->st = gm_fail(r->err, GM_EFORMAT, "%s: layer %d shares an index selection, but no earlier layer owns an indexer",
                            r->what, i);
    }
}

static void read_mla(reader *r, gm_model_config *c)
{
    enum { WIDTH_MAX = 1 << 16 };
    c->n_heads = need_int(r, "num_attention_heads", 1, 4096);
    int32_t kv_heads = opt_int(r, "num_key_value_heads", 1, 4096, c->n_heads);
    if (kv_heads != c->n_heads && !r->st)
        r->st = gm_fail(r->err, GM_EFORMAT, "%s: num_key_value_heads is %d, num_attention_heads is %d; MLA needs them equal",
                        r->what, kv_heads, c->n_heads);
    c->q_lora_rank = need_int(r, "q_lora_rank", 1, WIDTH_MAX);
    c->d_latent = need_int(r, "kv_lora_rank", 1, 4096);
    c->d_nope = need_int(r, "qk_nope_head_dim", 1, 4096);
    c->d_rope = need_int(r, "qk_rope_head_dim", 0, 256);
    c->d_v = need_int(r, "v_head_dim", 1, 4096);
    int32_t qk = opt_int(r, "qk_head_dim", 1, 8192, c->d_nope + c->d_rope);
    if (qk != c->d_nope + c->d_rope && !r->st)
        r->st = gm_fail(r->err, GM_EFORMAT, "%s: qk_head_dim is %d, qk_nope_head_dim + qk_rope_head_dim is %d", r->what, qk,
                        c->d_nope + c->d_rope);
    only_bool(r, "attention_bias", false);
    if (c->family == GM_FAMILY_GLM5_NEXT && c->d_rope != 0 && !r->st)
        r->st = gm_fail(r->err, GM_ENOTSUP, "%s: qk_rope_head_dim is %d; glm5_next has no rotary part (0)", r->what, c->d_rope);
    if (c->d_rope % 2 && !r->st)
        r->st = gm_fail(r->err, GM_EFORMAT, "%s: qk_rope_head_dim is %d, expected an even number", r->what, c->d_rope);
}

/* rope_theta stands in rope_parameters, in older files at the top; a default would be silently wrong far into a text. */
static void read_rope(reader *r, gm_model_config *c)
{
    if (c->d_rope == 0 || r->st) return;
    reader nested = {get(r, "rope_parameters"), "config.json rope_parameters", r->err, GM_OK};
    const json_t *top = get(r, "rope_theta"), *in = nested.obj ? get(&nested, "rope_theta") : NULL;
    if (nested.obj) only_string(&nested, "rope_type", "default");
    if (get(r, "rope_scaling") && !nested.st)
        nested.st = gm_fail(r->err, GM_ENOTSUP, "%s: rope_scaling is not implemented", r->what);
    if (!top && !in && !nested.st)
        nested.st = gm_fail(r->err, GM_EFORMAT, "%s: required key 'rope_parameters.rope_theta' is missing", r->what);
    r->st = nested.st;
    if (r->st) return;
    c->rope_theta = as_float(r, "rope_theta", in ? in : top, 1, 1e12);
    if (in && top && as_float(r, "rope_theta", top, 1, 1e12) != c->rope_theta && !r->st)
        r->st = gm_fail(r->err, GM_EFORMAT, "%s: rope_theta and rope_parameters.rope_theta differ", r->what);
    only_bool(r, "rope_interleave", true);
}

static void read_index(reader *r, gm_model_config *c)
{
    c->index_n_heads = need_int(r, "index_n_heads", 1, 1024);
    c->index_d_head = need_int(r, "index_head_dim", 1, 1024);
    c->index_topk = need_int(r, "index_topk", 1, 1 << 20);
    c->index_pool = 1;
    if (c->family == GM_FAMILY_GLM5_NEXT) {
        c->index_pool = need_int(r, "index_kpool", 1, 64);
        c->index_tail = need_bool(r, "index_kpool_always_select_tail");
        c->index_compress = true;
        only_bool(r, "index_kpool_compress", true);
    } else {
        only_bool(r, "indexer_rope_interleave", true);
        if (c->d_rope > c->index_d_head && !r->st)
            r->st = gm_fail(r->err, GM_EFORMAT, "%s: qk_rope_head_dim %d is wider than index_head_dim %d", r->what, c->d_rope,
                            c->index_d_head);
    }
    if (!r->st && c->index_topk % c->index_pool)
        r->st = gm_fail(r->err, GM_EFORMAT, "%s: index_topk %d is no multiple of index_kpool %d", r->what, c->index_topk,
                        c->index_pool);
}

/* The same four values have two spellings: in linear_attn_config (released file), and as flat linear_* keys. */
static void read_kda(reader *r, gm_model_config *c)
{
    if (gm_model_config_count(c, GM_MIXER_KDA) == 0 || r->st) return;
    reader nested = {get(r, "linear_attn_config"), "config.json linear_attn_config", r->err, GM_OK};
    if (nested.obj && !json_is_object(nested.obj)) {
        wrong_type(r, "linear_attn_config", nested.obj, "an object");
        return;
    }
    bool in = nested.obj != NULL;
    reader *s = in ? &nested : r;
    c->kda_n_heads = need_int(s, in ? "num_heads" : "linear_num_heads", 1, 4096);
    c->kda_d_head = need_int(s, in ? "head_dim" : "linear_head_dim", 1, 256);
    c->kda_conv = need_int(s, in ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 2, 8);
    c->kda_gate_lower = need_float(s, in ? "gate_lower_bound" : "linear_lower_bound", -1000, 0);
    if (!s->st && c->kda_gate_lower == 0)
        s->st = gm_fail(s->err, GM_EFORMAT, "%s: the gate's lower bound is 0: nothing would ever be forgotten", s->what);
    if (!r->st) r->st = s->st;
}

static void read_ffn_sizes(reader *r, gm_model_config *c)
{
    bool dense = false, moe = false;
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i].ffn == GM_FFN_DENSE) dense = true;
        else moe = true;
    }
    only_string(r, "hidden_act", "silu");
    if (dense) c->d_ffn = need_int(r, "intermediate_size", 1, 1 << 20);
    if (c->family == GM_FAMILY_GLM5_NEXT) c->swiglu_limit = need_float(r, "swiglu_limit", 1e-3, 1e6);
    if (!moe) return;
    c->d_expert = need_int(r, "moe_intermediate_size", 1, 1 << 20);
    const char *experts = get(r, "n_routed_experts") ? "n_routed_experts" : get(r, "num_experts") ? "num_experts" :
                          get(r, "num_local_experts") ? "num_local_experts" : "n_routed_experts";
    c->n_experts = need_int(r, experts, 1, 1024);
    c->n_shared = need_int(r, "n_shared_experts", 0, 64);
    c->n_active = need_int(r, "num_experts_per_tok", 1, 64);
    c->n_groups = need_int(r, "n_group", 1, 1024);
    c->topk_groups = need_int(r, "topk_group", 1, 1024);
    c->routed_scale = need_float(r, "routed_scaling_factor", 1e-6, 1e6);
    c->norm_topk = need_bool(r, "norm_topk_prob");
    only_string(r, "scoring_func", "sigmoid");
    only_string(r, "topk_method", "noaux_tc");
    only_string(r, "moe_router_dtype", "float32");
    if (r->st) return;
    int32_t group = c->n_experts / c->n_groups;
    if (c->n_experts % c->n_groups || (c->n_groups > 1 && group < 2) || c->topk_groups > c->n_groups)
        r->st = gm_fail(r->err, GM_EFORMAT,
                        "%s: %d experts in %d groups, of which %d are kept: groups must be equal, of two or more, and kept at most all",
                        r->what, c->n_experts, c->n_groups, c->topk_groups);
    else if (c->n_active > c->topk_groups * group)
        r->st = gm_fail(r->err, GM_EFORMAT, "%s: num_experts_per_tok is %d, but %d experts can be chosen", r->what, c->n_active,
                        c->topk_groups * group);
}

static void read_streams(reader *r, gm_model_config *c)
{
    c->n_streams = 1;
    if (c->family != GM_FAMILY_GLM5_NEXT || !opt_bool(r, "mhc", true)) return;
    c->n_streams = need_int(r, "hc_mult", 2, 8);
    c->hc_eps = need_float(r, "hc_eps", 0, 1);
    c->sinkhorn_iters = need_int(r, "hc_sinkhorn_iters", 1, 1000);
}

static gm_status read_quantization(gm_model_config *c, const json_t *top, const json_t *text, const char *what, gm_error *err)
{
    c->fp8_block[0] = c->fp8_block[1] = 128;
    const json_t *q = json_object_get(top, "quantization_config");
    if (!q || json_is_null(q)) q = json_object_get(text, "quantization_config");
    if (!q || json_is_null(q)) return GM_OK;
    char where[128];
    snprintf(where, sizeof where, "%s quantization_config", what);
    reader r = {q, where, err, GM_OK};
    if (!json_is_object(q)) return gm_fail(err, GM_EFORMAT, "%s is to be an object, found %s", where, type_name(q));
    need(&r, "quant_method");
    only_string(&r, "quant_method", "fp8");
    only_string(&r, "fmt", "e4m3");
    only_string(&r, "activation_scheme", "dynamic");
    const json_t *block = need(&r, "weight_block_size");
    if (r.st) return r.st;
    if (!json_is_array(block) || json_array_size(block) != 2)
        return gm_fail(err, GM_EFORMAT, "%s: weight_block_size is to be a list of two integers", where);
    for (size_t i = 0; i < 2; i++) {
        c->fp8_block[i] = as_int(&r, "weight_block_size", json_array_get(block, i), 1, 1 << 16);
        /* the matrix ops hold one scale for 128 columns in a register */
        if (!r.st && c->fp8_block[i] != 128)
            return gm_fail(err, GM_ENOTSUP, "%s: weight_block_size is %d; only 128 x 128 is implemented", where, c->fp8_block[i]);
    }
    c->fp8 = true;
    return r.st;
}

gm_status gm_model_config_add_eos(gm_model_config *c, const json_t *ids, const char *what, gm_error *err)
{
    json_t *one = NULL;
    size_t n = json_is_array(ids) ? json_array_size(ids) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(ids) ? json_array_get(ids, i) : ids;
        reader r = {one, what, err, GM_OK};
        int32_t id = as_int(&r, "eos_token_id", v, 0, c->vocab_size - 1), k = 0;
        if (r.st) return r.st;
        while (k < c->n_eos && c->eos[k] != id) k++;
        if (k < c->n_eos) continue;
        if (c->n_eos == GM_EOS_MAX) return gm_fail(err, GM_EFORMAT, "%s: more than %d eos_token_id", what, GM_EOS_MAX);
        c->eos[c->n_eos++] = id;
    }
    return GM_OK;
}

static gm_status check_architecture(gm_model_config *c, const json_t *config, const char *what, gm_error *err)
{
    const json_t *type = json_object_get(config, "model_type");
    const char *name = json_string_value(type);
    const char *arch = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    snprintf(c->architecture, sizeof c->architecture, "%s", arch ? arch : "");
    if (!name) return gm_fail(err, GM_EFORMAT, "%s: required key 'model_type' is missing", what);
    snprintf(c->model_type, sizeof c->model_type, "%s", name);
    if (strcmp(name, "glm5_next") == 0 || strcmp(name, "glm5_next_text") == 0) c->family = GM_FAMILY_GLM5_NEXT;
    else if (strcmp(name, "glm_moe_dsa") == 0) c->family = GM_FAMILY_GLM_MOE_DSA;
    else
        return gm_fail(err, GM_ENOTSUP, "%s: model_type '%s' (architecture '%s') is not implemented; known are glm5_next and glm_moe_dsa",
                       what, c->model_type, c->architecture);
    return GM_OK;
}

gm_status gm_model_config_parse(gm_model_config *out, const json_t *config, const char *what, gm_error *err)
{
    gm_model_config *c = gm_new(gm_model_config);
    gm_status st;
    if (!json_is_object(config)) {
        st = gm_fail(err, GM_EFORMAT, "%s: an object is needed, found %s", what, config ? type_name(config) : "nothing");
        goto done;
    }
    st = check_architecture(c, config, what, err);
    if (st) goto done;

    char where[128];
    const json_t *text = json_object_get(config, "text_config");
    snprintf(where, sizeof where, text ? "%s text_config" : "%s", what);
    reader r = {text ? text : config, where, err, GM_OK};
    if (text && !json_is_object(text)) {
        st = gm_fail(err, GM_EFORMAT, "%s: text_config is to be an object, found %s", what, type_name(text));
        goto done;
    }
    c->vocab_size = need_int(&r, "vocab_size", 1, 1 << 24);
    c->d_model = need_int(&r, "hidden_size", 1, 1 << 17);
    c->n_layers = need_int(&r, "num_hidden_layers", 1, GM_LAYERS_MAX);
    c->n_mtp_layers = opt_int(&r, "num_nextn_predict_layers", 0, 16, 0);
    c->max_positions = need_int(&r, "max_position_embeddings", 1, 1 << 30);
    c->rms_eps = need_float(&r, "rms_norm_eps", 1e-12, 1);
    c->latent_eps = c->rms_eps;
    c->pad_token = opt_int(&r, "pad_token_id", -1, c->vocab_size - 1, -1);
    c->tie_embeddings = opt_bool(&r, "tie_word_embeddings", false);
    if (!r.st) read_mixers(&r, c);
    if (!r.st) read_ffns(&r, c);
    if (!r.st) read_indexers(&r, c);
    if (!r.st && gm_model_config_count(c, GM_MIXER_MLA) > 0) {
        read_mla(&r, c);
        read_rope(&r, c);
        read_index(&r, c);
    } else {
        c->index_pool = 1;
    }
    if (!r.st) read_kda(&r, c);
    if (!r.st) read_ffn_sizes(&r, c);
    if (!r.st) read_streams(&r, c);
    st = r.st;
    if (!st) st = read_quantization(c, config, r.obj, what, err);
    const json_t *eos = get(&r, "eos_token_id");
    if (!eos) eos = json_object_get(config, "eos_token_id");
    if (!st && eos && !json_is_null(eos)) st = gm_model_config_add_eos(c, eos, where, err);
    if (!st) *out = *c;
done:
    gm_free(c);
    return st;
}

/* Objects merge key by key, everything else replaces. */
static void merge(json_t *into, const json_t *from)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)from, key, v)
    {
        json_t *old = json_object_get(into, key);
        if (json_is_object(old) && json_is_object(v)) merge(old, v);
        else json_object_set(into, key, v);
    }
}

gm_status gm_model_config_load(gm_model_config *out, const char *dir, const json_t *hf_overrides, gm_error *err)
{
    gm_str path = {0};
    json_t *config = NULL;
    gm_str_printf(&path, "%s/config.json", dir);
    gm_json_limits limits = {.bytes_max = (size_t)16 << 20, .depth_max = 64};
    gm_status st = gm_json_load(&config, gm_str_c(&path), &limits, err);
    if (!st && hf_overrides) {
        if (json_is_object(hf_overrides) && json_is_object(config)) merge(config, hf_overrides);
        else st = gm_fail(err, GM_EARG, "--hf-overrides and config.json must both be JSON objects");
    }
    if (!st) st = gm_model_config_parse(out, config, "config.json", err);
    if (st && config) gm_context(err, st, "%s", dir);
    json_decref(config);
    gm_str_fini(&path);
    return st;
}

int32_t gm_model_config_count(const gm_model_config *c, gm_mixer mixer)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_layers; i++) n += c->layers[i].mixer == mixer;
    return n;
}

int32_t gm_model_config_index_owners(const gm_model_config *c)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_layers; i++) n += c->layers[i].index == GM_INDEX_OWN;
    return n;
}
