/* For each check of the loader a file that breaks just that one, refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "io/safetensors.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/glimmer-io-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    char cmd[128];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

/* A file of the given header and n_data bytes 0, 1, 2 ... */
static void put_file(const char *name, const char *header, size_t n_data)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    uint64_t n = strlen(header);
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, n, f);
    for (size_t i = 0; i < n_data; i++) fputc((int)(i & 0xFF), f);
    fclose(f);
}

static void put_text(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void gone(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static void refused(const char *const *words)
{
    gm_error err = {0};
    gm_checkpoint *c = NULL;
    assert_int_not_equal(gm_checkpoint_open(&c, dir, &err), GM_OK);
    assert_null(c);
    for (; *words; words++)
        if (!strstr(err.message, *words)) fail_msg("'%s' is not in: %s", *words, err.message);
}
#define REFUSED(...) refused((const char *const[]){__VA_ARGS__, NULL})

#define AB                                                                                                   \
    "{\"__metadata__\":{\"format\":\"pt\"},"                                                                 \
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"                                     \
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}"

static void test_reads(void **state)
{
    gm_error err = {0};
    gm_checkpoint *c = NULL;
    (void)state;
    put_file("model.safetensors", AB, 32);
    if (gm_checkpoint_open(&c, dir, &err)) fail_msg("%s", err.message);
    assert_int_equal(gm_checkpoint_count(c), 2);
    const gm_tensor_entry *b = gm_checkpoint_find(c, "b");
    assert_non_null(b);
    assert_int_equal(b->dtype, GM_ST_BF16);
    assert_int_equal(b->n_dims, 1);
    assert_int_equal(b->shape[0], 4);
    assert_int_equal(((const uint8_t *)b->data)[0], 24);
    assert_null(gm_checkpoint_find(c, "c"));
    assert_int_equal(gm_checkpoint_bytes(c), 32);
    gm_checkpoint_close(c);
}

#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_entries(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *word;
    } cases[] = {
        {ONE("\"F33\"", "[2]", "[0,8]"), 8, "F33"},
        {ONE("7", "[2]", "[0,8]"), 8, "dtype"},
        {ONE("\"F32\"", "[2]", "[0,12]"), 12, "need 8"},
        {ONE("\"F32\"", "[-2]", "[0,8]"), 8, "dim 0"},
        {ONE("\"F32\"", "[2.5]", "[0,8]"), 8, "dim 0"},
        {ONE("\"F32\"", "\"2\"", "[0,8]"), 8, "shape"},
        {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "shape"},
        {ONE("\"F32\"", "[4611686018427387904,16]", "[0,8]"), 8, "overflows"},
        {ONE("\"F32\"", "[2]", "[8,0]"), 8, "out of order"},
        {ONE("\"F32\"", "[2]", "[0]"), 8, "data_offsets"},
        {ONE("\"F32\"", "[2]", "[0,8.0]"), 8, "data_offsets"},
        {ONE("\"F32\"", "[2]", "[-8,0]"), 8, "out of order"},
        {ONE("\"F32\"", "[2]", "[0,8]"), 7, "cut short"},
        {ONE("\"F32\"", "[2]", "[0,8]"), 9, "need 8 bytes of data, the file holds 9"},
        {ONE("\"F32\"", "[2]", "[4,12]"), 12, "belong to no tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
         "\"data_offsets\":[2,6]}}",
         6, "overlap"},
        {"{\"a\":7}", 0, "object"},
        {"[]", 0, "JSON object"},
        {"{", 0, "JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_file("model.safetensors", cases[i].header, cases[i].data);
        REFUSED(cases[i].word, "model.safetensors");
    }
}

static void test_cut_files(void **state)
{
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    size_t header = strlen(AB), whole = 8 + header + 32;
    size_t cuts[] = {whole - 1, whole - 20, 8 + header, 8 + header - 5, 20, 7, 0};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        put_file("model.safetensors", AB, 32);
        assert_int_equal(truncate(path, (off_t)cuts[i]), 0);
        REFUSED("model.safetensors");
    }
    FILE *f = fopen(path, "wb"); /* a header length that no file could have */
    uint64_t n = UINT64_MAX - 3;
    fwrite(&n, 8, 1, f);
    fputs("{}", f);
    fclose(f);
    REFUSED("header");
    gone("model.safetensors");
    REFUSED("neither");
}

#define A_ONLY "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
#define B_ONLY "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"

static void test_shards(void **state)
{
    gm_error err = {0};
    gm_checkpoint *c = NULL;
    (void)state;
    put_file("m-1.safetensors", A_ONLY, 4);
    put_file("m-2.safetensors", B_ONLY, 4);
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}");
    put_file("stray.safetensors", A_ONLY, 4); /* beside the shards, not of them */
    if (gm_checkpoint_open(&c, dir, &err)) fail_msg("%s", err.message);
    assert_int_equal(gm_checkpoint_count(c), 2);
    assert_string_equal(gm_checkpoint_strays(c), "stray.safetensors");
    gm_checkpoint_close(c);

    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-3.safetensors\"}}");
    REFUSED("m-3.safetensors", "index.json");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\"}}");
    REFUSED("tensor b is not in its shard");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}}");
    REFUSED("said to be in");
    put_file("m-1.safetensors", AB, 32);
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"m-1.safetensors\"}}");
    REFUSED("tensor b", "not in the index");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}");
    REFUSED("tensor b stands in");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}");
    REFUSED("does not name a file");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":3}}");
    REFUSED("does not name a file");
    put_text("model.safetensors.index.json", "{}");
    REFUSED("weight_map");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_entries, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shards, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
