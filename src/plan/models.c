#include "plan/models.h"

#include <string.h>
#include <sys/stat.h>

static const char flash[] =
    "{\"architectures\":[\"Glm5NextForConditionalGeneration\"],\"model_type\":\"glm5_next\",\"text_config\":{"
    "\"model_type\":\"glm5_next_text\",\"vocab_size\":154880,\"hidden_size\":4096,\"intermediate_size\":"
    "12288,"
    "\"moe_intermediate_size\":2048,\"num_hidden_layers\":45,\"num_nextn_predict_layers\":1,\"num_attention_"
    "heads\":64,"
    "\"num_key_value_heads\":64,\"head_dim\":0,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_"
    "dim\":256,"
    "\"qk_rope_head_dim\":0,\"qk_head_dim\":256,\"v_head_dim\":256,\"first_k_dense_replace\":3,\"linear_attn_"
    "config\":{"
    "\"num_heads\":64,\"head_dim\":128,\"short_conv_kernel_size\":4,\"gate_lower_bound\":-5.0,"
    "\"kda_layers\":[0,1,2,4,5,6,8,9,10,12,13,14,16,17,18,20,21,22,24,25,26,28,29,30,32,33,34,36,37,38,40,41,"
    "42,44],"
    "\"full_attn_layers\":[3,7,11,15,19,23,27,31,35,39,43]},\"n_routed_experts\":288,\"n_shared_experts\":1,"
    "\"num_experts_per_tok\":8,\"n_group\":1,\"topk_group\":1,\"topk_method\":\"noaux_tc\",\"scoring_func\":"
    "\"sigmoid\","
    "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"moe_router_dtype\":\"float32\",\"swiglu_limit\":"
    "10.0,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,\"mhc\":true,\"hc_mult\":4,\"hc_eps\":1e-06,\"hc_"
    "sinkhorn_iters\":20,"
    "\"index_n_heads\":32,\"index_head_dim\":128,\"index_topk\":2048,\"index_kpool\":4,\"index_kpool_"
    "compress\":true,"
    "\"index_kpool_always_select_tail\":true,\"indexer_rope_interleave\":true,\"max_position_embeddings\":"
    "1048576,"
    "\"attention_bias\":false,\"tie_word_embeddings\":false,\"eos_token_id\":[154820,154827,154829],\"pad_"
    "token_id\":154820}}";

static const char glm52[] =
    "{\"architectures\":[\"GlmMoeDsaForCausalLM\"],\"model_type\":\"glm_moe_dsa\",\"vocab_size\":154880,"
    "\"hidden_size\":6144,"
    "\"num_hidden_layers\":78,\"num_nextn_predict_layers\":1,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,"
    "\"max_position_embeddings\":1048576,\"rope_parameters\":{\"rope_theta\":8000000,\"rope_type\":"
    "\"default\"},"
    "\"rope_interleave\":true,\"indexer_rope_interleave\":true,\"attention_bias\":false,\"num_attention_"
    "heads\":64,"
    "\"num_key_value_heads\":64,\"q_lora_rank\":2048,\"kv_lora_rank\":512,\"qk_nope_head_dim\":192,\"qk_rope_"
    "head_dim\":64,"
    "\"v_head_dim\":256,\"head_dim\":192,\"index_n_heads\":32,\"index_head_dim\":128,\"index_topk\":2048,"
    "\"index_topk_freq\":4,\"index_skip_topk_offset\":3,\"index_topk_pattern\":null,\"intermediate_size\":"
    "12288,"
    "\"moe_intermediate_size\":2048,\"first_k_dense_replace\":3,\"moe_layer_freq\":1,\"n_routed_experts\":"
    "256,"
    "\"n_shared_experts\":1,\"num_experts_per_tok\":8,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,"
    "\"routed_scaling_factor\":2.5,\"tie_word_embeddings\":false,\"eos_token_id\":[154820,154827,154829],"
    "\"pad_token_id\":154820}";

/* What the FP8 releases announce; which tensors are FP8 follows from the model (config/weight_parts). */
static const char fp8[] = "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\","
                          "\"weight_block_size\":[128,128]}";

static const struct {
    const char *name, *config;
    bool fp8;
} models[] = {
    {"glm-5.2", glm52, false},      {"glm-5.2-fp8", glm52, true},       {"glm-5.2-bf16", glm52, false},
    {"glm-5.3-flash", flash, true}, {"glm-5.3-flash-fp8", flash, true}, {"glm-5.3-flash-bf16", flash, false},
};

static gm_status parse(gm_model_config *out, json_t *v, bool quantised, const json_t *overrides,
                       const char *what, gm_error *err)
{
    json_t *q = NULL;
    gm_status st = GM_OK;
    if (quantised) {
        st = gm_json_parse(&q, fp8, sizeof fp8 - 1, what, NULL, err);
        if (!st) json_object_set_new(v, "quantization_config", q);
    }
    if (!st && overrides) {
        json_object_update_recursive(v, (json_t *)(uintptr_t)overrides); /* only read */
    }
    return st ? st : gm_model_config_parse(out, v, what, err);
}

gm_status gm_model_open(gm_model_config *out, const char *name_or_path, const json_t *hf_overrides,
                        gm_error *err)
{
    json_t *v = NULL;
    struct stat s;
    gm_status st;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcasecmp(name_or_path, models[i].name) != 0) continue;
        st = gm_json_parse(&v, models[i].config, strlen(models[i].config), name_or_path, NULL, err);
        if (!st) st = parse(out, v, models[i].fp8, hf_overrides, name_or_path, err);
        json_decref(v);
        return st;
    }
    if (stat(name_or_path, &s) != 0)
        return gm_fail(err, GM_ENOTFOUND,
                       "'%.64s' is neither a built-in model (glm-5.2, glm-5.2-fp8, glm-5.3-flash, "
                       "glm-5.3-flash-bf16) nor a "
                       "checkpoint folder or config.json",
                       name_or_path);
    if (S_ISDIR(s.st_mode)) return gm_model_config_load(out, name_or_path, hf_overrides, err);
    st = gm_json_load(&v, name_or_path, NULL, err);
    if (!st) st = parse(out, v, false, hf_overrides, name_or_path, err);
    json_decref(v);
    return st;
}
