/* A golden checkpoint with one thing wrong at a time: each refused, naming the tensor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/mem.h"
#include "model/model_internal.h"

static char dir[64];
static gm_device *dev;

static int setup(void **state)
{
    gm_error err = {0};
    (void)state;
    strcpy(dir, "/tmp/glimmer-weights-XXXXXX");
    return mkdtemp(dir) && gm_device_open_cpu(&dev, GM_ISA_REF, 1, &err) == GM_OK ? 0 : -1;
}

static int teardown(void **state)
{
    char cmd[128];
    (void)state;
    gm_device_close(dev);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

/* A checkpoint in memory whose header can be edited; tensors keep their bytes. */
typedef struct editor {
    char source[256];
    json_t *header;
    uint8_t *data;
    size_t n_data;
} editor;

static void edit_open(editor *e, const char *golden)
{
    char path[400];
    snprintf(e->source, sizeof e->source, "%s/golden/%s", GM_FIXTURES, golden);
    snprintf(path, sizeof path, "%s/model.safetensors", e->source);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    uint64_t n;
    assert_int_equal(fread(&n, 8, 1, f), 1);
    char *text = gm_alloc(n + 1);
    assert_int_equal(fread(text, 1, n, f), n);
    struct stat sb;
    fstat(fileno(f), &sb);
    e->n_data = (size_t)sb.st_size - 8 - n;
    e->data = gm_alloc(e->n_data);
    assert_int_equal(fread(e->data, 1, e->n_data, f), e->n_data);
    fclose(f);
    e->header = json_loads(text, 0, NULL);
    assert_non_null(e->header);
    gm_free(text);
}

static void edit_save(editor *e)
{
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    char *text = json_dumps(e->header, JSON_COMPACT);
    uint64_t n = strlen(text);
    fwrite(&n, 8, 1, f);
    fwrite(text, 1, n, f);
    fwrite(e->data, 1, e->n_data, f);
    fclose(f);
    free(text);
    json_decref(e->header);
    gm_free(e->data);
}

static gm_status try_open(const editor *e, gm_error *err, char *skipped)
{
    static gm_model_config c;
    gm_weights *w = NULL;
    if (gm_model_config_load(&c, e->source, NULL, err)) fail_msg("%s", err->message);
    gm_status st = gm_weights_open(&w, dir, &c, dev, NULL, err);
    if (!st) snprintf(skipped, 256, "%s", gm_weights_skipped(w));
    gm_weights_close(w);
    return st;
}

static void refused(editor *e, const char *a, const char *b)
{
    gm_error err = {0};
    char skipped[256];
    edit_save(e);
    assert_int_equal(try_open(e, &err, skipped), GM_EFORMAT);
    if (!strstr(err.message, a) || !strstr(err.message, b)) fail_msg("'%s' and '%s' are not both in: %s", a, b, err.message);
}

#define L "model.language_model.layers."

static void rename_tensor(editor *e, const char *from, const char *to)
{
    json_t *v = json_incref(json_object_get(e->header, from));
    assert_non_null(v);
    json_object_del(e->header, from);
    json_object_set_new(e->header, to, v);
}

static void set_field(editor *e, const char *tensor, const char *key, json_t *v)
{
    json_t *t = json_object_get(e->header, tensor);
    assert_non_null(t);
    json_object_set_new(t, key, v);
}

static void test_absent_and_extra(void **state)
{
    static const char *const names[] = {
        "lm_head.weight", "model.language_model.norm.weight", L "0.hc_attn_fn", L "1.self_attn.A_log", L "3.self_attn.kv_b_proj.weight",
        L "3.self_attn.indexer.k_norm.bias", L "3.mlp.gate.e_score_correction_bias", L "4.mlp.experts.7.down_proj.weight",
        L "5.mlp.shared_experts.up_proj.weight", L "0.self_attn.q_conv1d.weight"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        editor e;
        edit_open(&e, "glm53-a");
        rename_tensor(&e, names[i], "model.language_model.layers.1.something_else");
        refused(&e, names[i], "missing");
    }
    editor e; /* absent and unwanted: an extra tensor of a layer that exists */
    edit_open(&e, "glm53-a");
    for (int k = 0; k < 1; k++) {
        rename_tensor(&e, "model.visual.merger.proj.weight", L "2.self_attn.surplus.weight");
    }
    refused(&e, L "2.self_attn.surplus.weight", "not part of this model");
}

static void test_shapes(void **state)
{
    editor e;
    (void)state;
    edit_open(&e, "glm53-a"); /* [320][128] the other way round */
    set_field(&e, "lm_head.weight", "shape", json_pack("[i,i]", 128, 320));
    refused(&e, "lm_head.weight", "[128, 320]");
    edit_open(&e, "glm53-a");
    set_field(&e, L "3.self_attn.indexer.index_kpool_compress_ape", "shape", json_pack("[i,i]", 32, 4));
    refused(&e, "index_kpool_compress_ape", "[4, 32]");
    edit_open(&e, "glm53-a");
    set_field(&e, L "0.self_attn.q_conv1d.weight", "shape", json_pack("[i,i]", 128, 4));
    refused(&e, "q_conv1d", "[128, 1, 4]");
}

static void swap_dtype(const char *golden, const char *tensor, const char *dtype)
{
    editor e;
    edit_open(&e, golden);
    set_field(&e, tensor, "dtype", json_string(dtype));
    refused(&e, tensor, dtype);
}

/* FP32 tensors whose rounding would go unnoticed, and dtypes that are not weights at all */
static void test_dtypes(void **state)
{
    (void)state;
    swap_dtype("glm53-a", "lm_head.weight", "F16");
    swap_dtype("glm53-a", L "3.mlp.gate.weight", "I16");
    swap_dtype("glm53-a", L "3.mlp.gate.e_score_correction_bias", "I32");
    swap_dtype("glm53-a", L "0.self_attn.A_log", "U32");
    swap_dtype("glm53-fp8", L "3.self_attn.q_a_proj.weight", "F8_E5M2");
    swap_dtype("glm53-fp8", L "3.self_attn.q_a_proj.weight_scale_inv", "I32");

    editor e; /* the router bias as BF16: half the bytes, cut from its own data and padded by a vision tensor */
    edit_open(&e, "glm53-a");
    const char *name = L "3.mlp.gate.e_score_correction_bias";
    json_t *off = json_object_get(json_object_get(e.header, name), "data_offsets");
    json_int_t a = json_integer_value(json_array_get(off, 0)), b = json_integer_value(json_array_get(off, 1)), mid = (a + b) / 2;
    json_object_set_new(e.header, name, json_pack("{s:s,s:[i],s:[I,I]}", "dtype", "BF16", "shape", 8, "data_offsets", a, mid));
    json_object_set_new(e.header, "model.visual.pad",
                        json_pack("{s:s,s:[I],s:[I,I]}", "dtype", "U8", "shape", b - mid, "data_offsets", mid, b));
    refused(&e, name, "needed is F32");
}

static void test_scales(void **state)
{
    editor e;
    (void)state;
    edit_open(&e, "glm53-fp8");
    rename_tensor(&e, L "3.mlp.experts.1.up_proj.weight_scale_inv", "model.visual.up_scale");
    refused(&e, L "3.mlp.experts.1.up_proj.weight", "scale");
    edit_open(&e, "glm53-fp8"); /* blocks of another size */
    set_field(&e, L "0.mlp.up_proj.weight_scale_inv", "shape", json_pack("[i,i]", 2, 3));
    refused(&e, L "0.mlp.up_proj.weight_scale_inv", "[3, 2]");
    edit_open(&e, "glm53-fp8"); /* a scale beside a weight that is not FP8 */
    rename_tensor(&e, "model.visual.merger.proj.weight", "lm_head.weight_scale_inv");
    refused(&e, "lm_head.weight_scale_inv", "not part of this model");
}

static void test_known_extras(void **state)
{
    gm_error err = {0};
    char skipped[256];
    editor e;
    (void)state;
    edit_open(&e, "glm53-a");
    edit_save(&e);
    if (try_open(&e, &err, skipped)) fail_msg("%s", err.message);
    assert_non_null(strstr(skipped, "vision tower"));
    edit_open(&e, "glm53-shared-index"); /* some builds ship indexers for all layers */
    rename_tensor(&e, "model.visual.merger.proj.weight", L "3.self_attn.indexer.wk.weight");
    edit_save(&e);
    if (try_open(&e, &err, skipped)) fail_msg("%s", err.message);
    assert_non_null(strstr(skipped, "share a selection"));
}

/* The same made-up weights whatever the number of threads, and others for another seed. */
static void test_dummy(void **state)
{
    static gm_model_config c;
    gm_error err = {0};
    gm_device *three = NULL;
    gm_weights *a = NULL, *b = NULL, *other = NULL;
    (void)state;
    if (gm_model_config_load(&c, GM_FIXTURES "/golden/glm53-fp8", NULL, &err)) fail_msg("%s", err.message);
    assert_int_equal(gm_device_open_cpu(&three, GM_ISA_REF, 3, &err), GM_OK);
    assert_int_equal(gm_weights_dummy(&a, &c, dev, 1, &err), GM_OK);
    assert_int_equal(gm_weights_dummy(&b, &c, three, 1, &err), GM_OK);
    assert_int_equal(gm_weights_dummy(&other, &c, dev, 2, &err), GM_OK);
    assert_int_equal(gm_weights_bytes(a), gm_weights_bytes(b));
    assert_int_equal(a->layers[3].moe.gate[0].dtype, GM_F8E4M3);
    size_t n = (size_t)c.vocab_size * (size_t)c.d_model * 2;
    assert_memory_equal(a->embed.data, b->embed.data, n);
    assert_true(memcmp(a->embed.data, other->embed.data, n) != 0);
    gm_weights_close(a);
    gm_weights_close(b);
    gm_weights_close(other);
    gm_device_close(three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent_and_extra), cmocka_unit_test(test_shapes),       cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_scales),           cmocka_unit_test(test_known_extras), cmocka_unit_test(test_dummy),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
