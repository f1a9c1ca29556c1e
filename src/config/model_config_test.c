#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config/footprint.h"
#include "config/model_config.h"

/* The released configs, reduced to the keys that are read. */
static const char flash[] =
    "{\"architectures\":[\"Glm5NextForConditionalGeneration\"],\"model_type\":\"glm5_next\",\"text_config\":{"
    "\"model_type\":\"glm5_next_text\",\"vocab_size\":154880,\"hidden_size\":4096,\"intermediate_size\":12288,"
    "\"moe_intermediate_size\":2048,\"num_hidden_layers\":45,\"num_nextn_predict_layers\":1,\"num_attention_heads\":64,"
    "\"num_key_value_heads\":64,\"head_dim\":0,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":256,"
    "\"qk_rope_head_dim\":0,\"qk_head_dim\":256,\"v_head_dim\":256,\"first_k_dense_replace\":3,\"linear_attn_config\":{"
    "\"num_heads\":64,\"head_dim\":128,\"short_conv_kernel_size\":4,\"gate_lower_bound\":-5.0,"
    "\"kda_layers\":[0,1,2,4,5,6,8,9,10,12,13,14,16,17,18,20,21,22,24,25,26,28,29,30,32,33,34,36,37,38,40,41,42,44],"
    "\"full_attn_layers\":[3,7,11,15,19,23,27,31,35,39,43]},\"n_routed_experts\":288,\"n_shared_experts\":1,"
    "\"num_experts_per_tok\":8,\"n_group\":1,\"topk_group\":1,\"topk_method\":\"noaux_tc\",\"scoring_func\":\"sigmoid\","
    "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"moe_router_dtype\":\"float32\",\"swiglu_limit\":10.0,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,\"mhc\":true,\"hc_mult\":4,\"hc_eps\":1e-06,\"hc_sinkhorn_iters\":20,"
    "\"index_n_heads\":32,\"index_head_dim\":128,\"index_topk\":2048,\"index_kpool\":4,\"index_kpool_compress\":true,"
    "\"index_kpool_always_select_tail\":true,\"indexer_rope_interleave\":true,\"max_position_embeddings\":1048576,"
    "\"attention_bias\":false,\"eos_token_id\":[154820,154827,154829],\"pad_token_id\":154820}}";

static const char glm52[] =
    "{\"architectures\":[\"GlmMoeDsaForCausalLM\"],\"model_type\":\"glm_moe_dsa\",\"vocab_size\":154880,\"hidden_size\":6144,"
    "\"num_hidden_layers\":78,\"num_nextn_predict_layers\":1,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,"
    "\"max_position_embeddings\":1048576,\"rope_parameters\":{\"rope_theta\":8000000,\"rope_type\":\"default\"},"
    "\"rope_interleave\":true,\"indexer_rope_interleave\":true,\"attention_bias\":false,\"num_attention_heads\":64,"
    "\"num_key_value_heads\":64,\"q_lora_rank\":2048,\"kv_lora_rank\":512,\"qk_nope_head_dim\":192,\"qk_rope_head_dim\":64,"
    "\"v_head_dim\":256,\"head_dim\":192,\"index_n_heads\":32,\"index_head_dim\":128,\"index_topk\":2048,"
    "\"index_topk_freq\":4,\"index_skip_topk_offset\":3,\"index_topk_pattern\":null,\"intermediate_size\":12288,"
    "\"moe_intermediate_size\":2048,\"first_k_dense_replace\":3,\"moe_layer_freq\":1,\"n_routed_experts\":256,"
    "\"n_shared_experts\":1,\"num_experts_per_tok\":8,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,"
    "\"routed_scaling_factor\":2.5,\"eos_token_id\":[154820,154827,154829],\"pad_token_id\":154820}";

static json_t *parse(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    return v;
}

static gm_status read(gm_model_config *c, const json_t *v, gm_error *err)
{
    return gm_model_config_parse(c, v, "config.json", err);
}

static void test_flash(void **state)
{
    static gm_model_config c;
    gm_error err = {0};
    json_t *v = parse(flash);
    (void)state;
    assert_int_equal(read(&c, v, &err), GM_OK);
    assert_int_equal(gm_model_config_count(&c, GM_MIXER_KDA), 34);
    assert_int_equal(gm_model_config_count(&c, GM_MIXER_MLA), 11);
    assert_int_equal(gm_model_config_index_owners(&c), 11);
    assert_int_equal(c.layers[44].mixer, GM_MIXER_KDA);
    assert_int_equal(c.layers[2].ffn, GM_FFN_DENSE);
    assert_int_equal(c.layers[3].ffn, GM_FFN_MOE);
    assert_int_equal(c.index_pool, 4);
    assert_int_equal(c.n_streams, 4);
    assert_int_equal(c.n_eos, 3);
    json_decref(v);
}

/* the published bytes: BF16 rows with FP8 index keys 11,627 a token; 147,619,840 of KDA state a sequence */
static void test_flash_footprint(void **state)
{
    static gm_model_config c;
    gm_error err = {0};
    json_t *v = parse(flash);
    (void)state;
    assert_int_equal(read(&c, v, &err), GM_OK);
    gm_footprint f = gm_footprint_compute(&c, &(gm_footprint_params){GM_KV_BF16, GM_KV_FP8, true});
    assert_int_equal(f.page_tokens, 64);
    assert_int_equal(f.page_bytes, 64 * 11627);
    assert_int_equal(f.n_kda * (f.state_bytes + f.conv_bytes), 147619840);
    assert_int_equal(f.tail_bytes, 2048);
    assert_int_equal(f.slot_bytes, 147619840 + 11 * 2048);
    /* 321,323,031,390 parameters in all, of which 7,432,592,416 MTP and 563,627,008 vision */
    assert_int_equal(f.params_total, 321323031390 - 7432592416 - 563627008);
    json_decref(v);
}

static void test_glm52(void **state)
{
    static gm_model_config c;
    static const int owners[] = {0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74};
    gm_error err = {0};
    json_t *v = parse(glm52);
    (void)state;
    if (read(&c, v, &err)) fail_msg("%s", err.message);
    int k = 0;
    for (int i = 0; i < c.n_layers; i++) {
        bool own = k < 21 && owners[k] == i;
        assert_int_equal(c.layers[i].index, own ? GM_INDEX_OWN : GM_INDEX_SHARED);
        k += own;
    }
    assert_true(c.rope_theta == 8e6f);
    gm_footprint f = gm_footprint_compute(&c, &(gm_footprint_params){GM_KV_BF16, GM_KV_BF16, true});
    assert_int_equal(f.page_bytes, 64 * 95232);
    f = gm_footprint_compute(&c, &(gm_footprint_params){GM_KV_FP8, GM_KV_FP8, true});
    assert_int_equal(f.latent_row_bytes, 512 + 32 + 128);
    assert_int_equal(f.page_bytes, 64 * (78 * 672 + 21 * 132));
    assert_int_equal(f.slot_bytes, 0);
    /* the published 40,297,758,720 counts matrices; norms and router biases come on top */
    int64_t norms = 78 * (2 * 6144 + 2048 + 512) + 6144 + 21 * 256 + 75 * 256;
    assert_int_equal(f.params_active, 40297758720 + norms);
    json_decref(v);
}

/* Every key that is read must be missed by name when it is gone. */
static void missing_keys(const char *text, bool nested, const char *const *required)
{
    static gm_model_config c;
    for (; *required; required++) {
        gm_error err = {0};
        json_t *v = parse(text), *in = nested ? json_object_get(v, "text_config") : v;
        assert_int_equal(json_object_del(in, *required), 0);
        assert_int_equal(read(&c, v, &err), GM_EFORMAT);
        if (!strstr(err.message, *required)) fail_msg("%s gone: %s", *required, err.message);
        json_decref(v);
    }
}

static void test_missing_keys(void **state)
{
    static const char *const f[] = {"vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
                                    "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                                    "v_head_dim", "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group",
                                    "topk_group", "norm_topk_prob", "routed_scaling_factor", "swiglu_limit", "rms_norm_eps",
                                    "hc_mult", "hc_eps", "hc_sinkhorn_iters", "index_n_heads", "index_head_dim", "index_topk",
                                    "index_kpool", "index_kpool_always_select_tail", "max_position_embeddings", NULL};
    static const char *const g[] = {"hidden_size", "n_routed_experts", "index_topk", NULL};
    (void)state;
    missing_keys(flash, true, f);
    missing_keys(glm52, false, g);
}

/* rope_theta: nested, at the top, in both places, nowhere */
static void test_rope_theta(void **state)
{
    static gm_model_config c;
    gm_error err = {0};
    json_t *v = parse(glm52);
    (void)state;
    json_object_del(v, "rope_parameters");
    assert_int_equal(read(&c, v, &err), GM_EFORMAT);
    assert_non_null(strstr(err.message, "rope_theta"));
    json_object_set_new(v, "rope_theta", json_real(1e6));
    assert_int_equal(read(&c, v, &err), GM_OK);
    assert_true(c.rope_theta == 1e6f);
    json_object_set_new(v, "rope_parameters", json_pack("{s:s,s:f}", "rope_type", "default", "rope_theta", 8e6));
    assert_int_equal(read(&c, v, &err), GM_EFORMAT);
    json_object_set_new(v, "rope_parameters", json_pack("{s:s,s:f}", "rope_type", "yarn", "rope_theta", 1e6));
    assert_int_equal(read(&c, v, &err), GM_ENOTSUP);
    json_decref(v);
}

static void refused(const char *key, json_t *value, gm_status st, const char *word)
{
    static gm_model_config c;
    gm_error err = {0};
    json_t *v = parse(flash);
    json_object_set_new(json_object_get(v, "text_config"), key, value);
    assert_int_equal(read(&c, v, &err), st);
    if (!strstr(err.message, word)) fail_msg("%s: message lacks '%s': %s", key, word, err.message);
    json_decref(v);
}

static void test_refusals(void **state)
{
    (void)state;
    refused("hidden_size", json_string("big"), GM_EFORMAT, "hidden_size");
    refused("hidden_size", json_integer(-1), GM_EFORMAT, "hidden_size");
    refused("hidden_size", json_integer(1LL << 40), GM_EFORMAT, "hidden_size");
    refused("num_key_value_heads", json_integer(8), GM_EFORMAT, "num_key_value_heads");
    refused("qk_rope_head_dim", json_integer(64), GM_EFORMAT, "qk_head_dim");
    refused("qk_head_dim", json_integer(100), GM_EFORMAT, "qk_head_dim");
    refused("index_topk", json_integer(2050), GM_EFORMAT, "index_kpool");
    refused("scoring_func", json_string("softmax"), GM_ENOTSUP, "scoring_func");
    refused("hidden_act", json_string("gelu"), GM_ENOTSUP, "hidden_act");
    refused("attention_bias", json_true(), GM_ENOTSUP, "attention_bias");
    refused("n_group", json_integer(7), GM_EFORMAT, "group");
    refused("num_experts_per_tok", json_integer(60), GM_OK, "");
    refused("layer_types", json_pack("[s]", "linear_attention"), GM_EFORMAT, "layer_types");
    refused("eos_token_id", json_integer(154880), GM_EFORMAT, "eos_token_id");
    refused("index_kpool_compress", json_false(), GM_ENOTSUP, "index_kpool_compress");
}

static void test_architecture_is_named(void **state)
{
    static gm_model_config c;
    gm_error err = {0};
    json_t *v = json_pack("{s:s,s:[s]}", "model_type", "llama", "architectures", "LlamaForCausalLM");
    (void)state;
    assert_int_equal(read(&c, v, &err), GM_ENOTSUP);
    assert_non_null(strstr(err.message, "llama"));
    assert_non_null(strstr(err.message, "LlamaForCausalLM"));
    json_decref(v);
}

/* a first layer that shares has nobody to share with */
static void test_indexer_patterns(void **state)
{
    static gm_model_config c;
    gm_error err = {0};
    json_t *v = parse(glm52);
    (void)state;
    json_object_set_new(v, "num_hidden_layers", json_integer(6));
    json_object_set_new(v, "index_topk_pattern", json_string("FSFSSF"));
    assert_int_equal(read(&c, v, &err), GM_OK);
    assert_int_equal(gm_model_config_index_owners(&c), 3);
    json_object_set_new(v, "index_topk_pattern", json_string("SFFFFF"));
    assert_int_equal(read(&c, v, &err), GM_EFORMAT);
    assert_non_null(strstr(err.message, "layer 0"));
    json_object_set_new(v, "index_topk_pattern", json_string("FX"));
    assert_int_equal(read(&c, v, &err), GM_ENOTSUP);
    json_decref(v);
}

static void test_overrides(void **state)
{
    static gm_model_config c;
    gm_error err = {0};
    json_t *o = parse("{\"text_config\":{\"n_routed_experts\":8,\"num_hidden_layers\":4}}");
    (void)state;
    if (gm_model_config_load(&c, GM_MODELS "/tiny-glm-5.3-flash", o, &err)) fail_msg("%s", err.message);
    assert_int_equal(c.n_experts, 8);
    assert_int_equal(c.n_layers, 4);
    assert_int_equal(c.d_model, 256);
    assert_true(c.fp8);
    json_decref(o);
    assert_int_equal(gm_model_config_load(&c, "/nonexistent", NULL, &err), GM_EIO);
}

/* an end token in one file does not replace those of the other */
static void test_eos_union(void **state)
{
    static gm_model_config c;
    gm_error err = {0};
    json_t *v = parse(flash), *more = parse("[154827, 5]");
    (void)state;
    assert_int_equal(read(&c, v, &err), GM_OK);
    assert_int_equal(gm_model_config_add_eos(&c, more, "generation_config.json", &err), GM_OK);
    assert_int_equal(c.n_eos, 4);
    assert_int_equal(c.eos[3], 5);
    json_decref(v);
    json_decref(more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flash),          cmocka_unit_test(test_flash_footprint),
        cmocka_unit_test(test_glm52),          cmocka_unit_test(test_missing_keys),
        cmocka_unit_test(test_rope_theta),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_architecture_is_named), cmocka_unit_test(test_indexer_patterns),
        cmocka_unit_test(test_overrides),      cmocka_unit_test(test_eos_union),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
