/* tokenizer.json, every field checked: what is not implemented is refused by name, never skipped. */
#include "text/tokenizer_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

#define ID_MAX ((int32_t)1 << 24)
#define TOKEN_BYTES_MAX ((size_t)1 << 16)

typedef struct loader {
    gm_tokenizer *t;
    const char *what;
    gm_error *err;
} loader;

#define REFUSE(l, ...) refuse((l), GM_ENOTSUP, __VA_ARGS__)
#define MALFORMED(l, ...) refuse((l), GM_EFORMAT, __VA_ARGS__)

static gm_status refuse(const loader *l, gm_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static gm_status refuse(const loader *l, gm_status st, const char *fmt, ...)
{
    gm_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gm_str_vprintf(&s, fmt, ap);
    va_end(ap);
    gm_fail(l->err, st, "%s: %s", l->what, gm_str_c(&s));
    gm_str_fini(&s);
    return st;
}

static bool absent(const json_t *v)
{
    return !v || json_is_null(v);
}

/* The "type" of a component, "" where it has none. */
static const char *type_of(const json_t *v)
{
    const char *s = json_string_value(json_object_get(v, "type"));
    return s ? s : "";
}

static bool is_false(const json_t *v)
{
    return absent(v) || json_is_false(v);
}

/* ---- components ---- */

static gm_status check_normalizer(const loader *l, const json_t *v)
{
    if (absent(v)) return GM_OK;
    const json_t *list = json_object_get(v, "normalizers");
    if (strcmp(type_of(v), "Sequence") == 0 && json_is_array(list) && json_array_size(list) == 0)
        return GM_OK;
    return REFUSE(l, "normalizer of type \"%.40s\" is not implemented", type_of(v));
}

static gm_status check_byte_level(const loader *l, const json_t *v, const char *field)
{
    if (strcmp(type_of(v), "ByteLevel") == 0) return GM_OK;
    return REFUSE(l, "%s of type \"%.40s\" is not implemented", field, type_of(v));
}

static gm_status check_outer(const loader *l, const json_t *root)
{
    static const char *const off[] = {"truncation", "padding"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!absent(json_object_get(root, off[i]))) return REFUSE(l, "%s is not implemented", off[i]);
    gm_status st = check_normalizer(l, json_object_get(root, "normalizer"));
    if (st) return st;
    const json_t *post = json_object_get(root, "post_processor"); /* ByteLevel: moves offsets, no ids */
    if (!absent(post) && (st = check_byte_level(l, post, "post_processor"))) return st;
    return check_byte_level(l, json_object_get(root, "decoder"), "decoder");
}

static gm_status load_split(const loader *l, const json_t *v)
{
    const json_t *regex = json_object_get(json_object_get(v, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(v, "behavior"));
    if (strcmp(type_of(v), "Split") != 0)
        return REFUSE(l, "pre_tokenizer of type \"%.40s\" is not implemented", type_of(v));
    if (!json_is_string(regex))
        return REFUSE(l, "pre_tokenizer: Split without a Regex pattern is not implemented");
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return REFUSE(l, "pre_tokenizer: Split behavior \"%.40s\" is not implemented",
                      behavior ? behavior : "");
    if (!is_false(json_object_get(v, "invert")))
        return REFUSE(l, "pre_tokenizer: Split invert is not implemented");
    return gm_presplit_create(&l->t->split, json_string_value(regex), json_string_length(regex), l->what,
                              l->err);
}

static gm_status load_pre_tokenizer(const loader *l, const json_t *v)
{
    const json_t *list = json_object_get(v, "pretokenizers");
    if (strcmp(type_of(v), "Sequence") != 0)
        return REFUSE(l, "pre_tokenizer of type \"%.40s\" is not implemented", type_of(v));
    if (json_array_size(list) != 2)
        return REFUSE(l, "pre_tokenizer: a Sequence of %zu parts is not implemented", json_array_size(list));
    const json_t *bytes = json_array_get(list, 1);
    gm_status st = load_split(l, json_array_get(list, 0));
    if (!st) st = check_byte_level(l, bytes, "pre_tokenizer");
    if (st) return st;
    if (!is_false(json_object_get(bytes, "add_prefix_space")) ||
        !json_is_false(json_object_get(bytes, "use_regex")))
        return REFUSE(l, "pre_tokenizer: ByteLevel with add_prefix_space or use_regex is not implemented");
    return GM_OK;
}

static gm_status check_model(const loader *l, const json_t *m)
{
    const char *type = type_of(m);
    if (!json_is_object(m)) return MALFORMED(l, "model is not an object");
    if (*type && strcmp(type, "BPE") != 0)
        return REFUSE(l, "model of type \"%.40s\" is not implemented", type);
    static const char *const off[] = {"dropout", "unk_token"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!absent(json_object_get(m, off[i]))) return REFUSE(l, "model.%s is not implemented", off[i]);
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++) {
        const json_t *v = json_object_get(m, affixes[i]);
        if (!absent(v) && !(json_is_string(v) && json_string_length(v) == 0))
            return REFUSE(l, "model.%s is not implemented", affixes[i]);
    }
    if (!is_false(json_object_get(m, "byte_fallback")))
        return REFUSE(l, "model.byte_fallback is not implemented");
    const json_t *ignore = json_object_get(m, "ignore_merges");
    if (!is_false(ignore) && !json_is_true(ignore))
        return MALFORMED(l, "model.ignore_merges is not a boolean");
    l->t->bpe.ignore_merges = json_is_true(ignore);
    return GM_OK;
}

/* ---- ids ---- */

static bool good_id(const json_t *v, int32_t *id)
{
    if (!json_is_integer(v)) return false;
    json_int_t i = json_integer_value(v);
    if (i < 0 || i >= ID_MAX) return false;
    *id = (int32_t)i;
    return true;
}

/* The table is sized by the highest id, so that one must not be far above the number of tokens. */
static gm_status size_tables(const loader *l, const json_t *vocab, const json_t *added)
{
    int32_t id, highest = -1;
    size_t n = json_object_size(vocab) + json_array_size(added), i;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, v)
    {
        if (!good_id(v, &id)) return MALFORMED(l, "model.vocab: an id is not an integer in [0, %d)", ID_MAX);
        if (id > highest) highest = id;
    }
    json_array_foreach(added, i, v)
    {
        if (!good_id(json_object_get(v, "id"), &id))
            return MALFORMED(l, "added_tokens[%zu].id is not an integer in [0, %d)", i, ID_MAX);
        if (id > highest) highest = id;
    }
    if ((size_t)highest >= 4 * n + 65536) return MALFORMED(l, "id %d among only %zu tokens", highest, n);
    l->t->flags = gm_try_alloc((size_t)highest + 1, 1);
    if (!l->t->flags) return gm_fail(l->err, GM_ENOMEM, "%s: no memory for %d tokens", l->what, highest + 1);
    return gm_bpe_init(&l->t->bpe, highest + 1, n, l->err);
}

/* ---- vocabulary ---- */

static uint32_t next_code_point(const unsigned char *s, size_t *i)
{
    unsigned char c = s[(*i)++];
    if (c < 0x80) return c;
    int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
    uint32_t v = c & (0x3Fu >> more);
    while (more--) v = v << 6 | (s[(*i)++] & 0x3Fu);
    return v;
}

/* A token as the file writes it to raw bytes. False: a character outside the alphabet. */
static bool unmap(gm_str *out, const char *s, size_t len)
{
    gm_str_clear(out);
    for (size_t i = 0; i < len;) {
        int b = gm_char_to_byte(next_code_point((const unsigned char *)s, &i));
        if (b < 0) return false;
        gm_str_putc(out, (char)b);
    }
    return true;
}

/* Added tokens may stand in the vocabulary as well; there they are not byte-mapped, so they are left to the
 * list. */
static bool is_added_literal(const loader *l, const char *text, size_t len, int32_t id)
{
    return gm_added_set_id(&l->t->added, text, len) == id;
}

static gm_status load_vocab(const loader *l, const json_t *vocab)
{
    gm_str bytes = {0};
    gm_status st = GM_OK;
    const char *key;
    size_t len;
    json_t *v;
    json_object_keylen_foreach((json_t *)(uintptr_t)vocab, key, len, v)
    {
        int32_t id = (int32_t)json_integer_value(v);
        if (is_added_literal(l, key, len, id)) continue;
        if (len == 0 || len > TOKEN_BYTES_MAX)
            st = MALFORMED(l, "model.vocab: token %d has %zu bytes", id, len);
        else if (!unmap(&bytes, key, len))
            st = MALFORMED(l, "model.vocab: token %d has a character outside the byte-level alphabet", id);
        else if (!gm_bpe_add(&l->t->bpe, id, bytes.data, bytes.len))
            st = MALFORMED(l, "model.vocab: id %d is given twice", id);
        if (st) break;
        if ((int32_t)bytes.len > l->t->longest) l->t->longest = (int32_t)bytes.len;
    }
    gm_str_fini(&bytes);
    for (int b = 0; b < 256 && !st; b++) {
        char c = (char)b;
        l->t->bpe.byte_ids[b] = gm_bpe_find(&l->t->bpe, &c, 1);
        if (l->t->bpe.byte_ids[b] < 0) st = REFUSE(l, "model.vocab: byte 0x%02x is no token", b);
    }
    return st;
}

/* ---- merges ---- */

/* The two sides of a merge: ["a", "b"] or "a b". */
static bool merge_sides(const json_t *v, const char *side[2], size_t len[2])
{
    if (json_is_string(v)) {
        const char *s = json_string_value(v), *blank = memchr(s, ' ', json_string_length(v));
        if (!blank || memchr(blank + 1, ' ', json_string_length(v) - (size_t)(blank + 1 - s))) return false;
        side[0] = s;
        len[0] = (size_t)(blank - s);
        side[1] = blank + 1;
        len[1] = json_string_length(v) - len[0] - 1;
        return true;
    }
    if (json_array_size(v) != 2) return false;
    for (size_t i = 0; i < 2; i++) {
        const json_t *s = json_array_get(v, i);
        if (!json_is_string(s)) return false;
        side[i] = json_string_value(s);
        len[i] = json_string_length(s);
    }
    return true;
}

static gm_status load_merge(const loader *l, size_t rank, const json_t *v, gm_str *one, gm_str *both)
{
    const char *side[2];
    size_t len[2];
    int32_t ids[2];
    gm_bpe *b = &l->t->bpe;
    if (!merge_sides(v, side, len)) return MALFORMED(l, "model.merges[%zu] is not a pair of strings", rank);
    gm_str_clear(both);
    for (int i = 0; i < 2; i++) {
        ids[i] = unmap(one, side[i], len[i]) && one->len ? gm_bpe_find(b, one->data, one->len) : -1;
        if (ids[i] < 0) return MALFORMED(l, "model.merges[%zu]: a side is not in the vocabulary", rank);
        gm_str_append(both, one->data, one->len);
    }
    int32_t merged = gm_bpe_find(b, both->data, both->len);
    if (merged < 0) return MALFORMED(l, "model.merges[%zu]: the result is not in the vocabulary", rank);
    gm_u64_map_put(&b->merges, (uint64_t)(uint32_t)ids[0] << 32 | (uint32_t)ids[1],
                   (uint64_t)rank << 32 | (uint32_t)merged);
    return GM_OK;
}

static gm_status load_merges(const loader *l, const json_t *merges)
{
    gm_str one = {0}, both = {0};
    gm_status st = GM_OK;
    size_t i;
    json_t *v;
    if (!json_is_array(merges)) return MALFORMED(l, "model.merges is not an array");
    if (json_array_size(merges) > ID_MAX)
        return MALFORMED(l, "model.merges has %zu entries", json_array_size(merges));
    json_array_foreach(merges, i, v)
    {
        st = load_merge(l, i, v, &one, &both);
        if (st) break;
    }
    gm_str_fini(&one);
    gm_str_fini(&both);
    return st;
}

/* ---- added tokens ---- */

static gm_status check_added(const loader *l, size_t i, const json_t *v)
{
    static const char *const off[] = {"single_word", "lstrip", "rstrip", "normalized"};
    const json_t *content = json_object_get(v, "content"), *special = json_object_get(v, "special");
    if (!json_is_string(content)) return MALFORMED(l, "added_tokens[%zu].content is not a string", i);
    size_t len = json_string_length(content);
    if (len == 0 || len > TOKEN_BYTES_MAX)
        return MALFORMED(l, "added_tokens[%zu].content has %zu bytes", i, len);
    for (size_t k = 0; k < sizeof off / sizeof *off; k++)
        if (!is_false(json_object_get(v, off[k])))
            return REFUSE(l, "added_tokens[%zu].%s is not implemented", i, off[k]);
    if (!is_false(special) && !json_is_true(special))
        return MALFORMED(l, "added_tokens[%zu].special is not a boolean", i);
    return GM_OK;
}

static int32_t count_chars(const char *s, size_t len)
{
    int32_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

/* Before the vocabulary: ids are still without bytes. */
static gm_status load_added(const loader *l, const json_t *added)
{
    size_t i;
    json_t *v;
    json_array_foreach(added, i, v)
    {
        gm_status st = check_added(l, i, v);
        if (st) return st;
        const json_t *content = json_object_get(v, "content");
        const char *text = json_string_value(content);
        size_t len = json_string_length(content);
        int32_t id = (int32_t)json_integer_value(json_object_get(v, "id"));
        if (!gm_bpe_add_literal(&l->t->bpe, id, text, len))
            return MALFORMED(l, "added_tokens[%zu]: id %d is given twice", i, id);
        if (!gm_added_set_put(&l->t->added, text, len, id))
            return MALFORMED(l, "added_tokens[%zu]: its content is given twice", i);
        l->t->flags[id] =
            (unsigned char)(GM_TOKEN_ADDED |
                            (json_is_true(json_object_get(v, "special")) ? GM_TOKEN_SPECIAL : 0));
        int32_t chars = count_chars(text, len);
        if (chars > l->t->longest) l->t->longest = chars;
    }
    return GM_OK;
}

/* Hugging Face gives an added token the vocabulary's id where both name one: the file must agree with itself.
 */
static gm_status check_added_in_vocab(const loader *l, const json_t *vocab, const json_t *added)
{
    size_t i;
    json_t *v;
    json_array_foreach(added, i, v)
    {
        const json_t *content = json_object_get(v, "content");
        const json_t *id = json_object_getn(vocab, json_string_value(content), json_string_length(content));
        if (id && json_integer_value(id) != json_integer_value(json_object_get(v, "id")))
            return MALFORMED(l, "added_tokens[%zu] has another id in model.vocab", i);
    }
    return GM_OK;
}

static gm_status load(const loader *l, const json_t *root)
{
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    const json_t *vocab = json_object_get(model, "vocab");
    if (!json_is_object(root)) return MALFORMED(l, "not an object");
    gm_status st = check_model(l, model);
    if (!st) st = check_outer(l, root);
    if (!st) st = load_pre_tokenizer(l, json_object_get(root, "pre_tokenizer"));
    if (st) return st;
    if (!json_is_object(vocab)) return MALFORMED(l, "model.vocab is not an object");
    if (!absent(added) && !json_is_array(added)) return MALFORMED(l, "added_tokens is not an array");
    st = size_tables(l, vocab, added);
    if (!st) st = load_added(l, added);
    if (!st) st = check_added_in_vocab(l, vocab, added);
    if (!st) st = load_vocab(l, vocab);
    if (!st) st = load_merges(l, json_object_get(model, "merges"));
    return st;
}

static gm_status from_json(gm_tokenizer **out, const json_t *root, const char *what, gm_error *err)
{
    loader l = {.t = gm_new(gm_tokenizer), .what = what, .err = err};
    gm_status st = load(&l, root);
    if (st) gm_tokenizer_close(l.t);
    else *out = l.t;
    return st;
}

gm_status gm_tokenizer_parse(gm_tokenizer **out, const char *json, size_t len, const char *what,
                             gm_error *err)
{
    json_t *root = NULL;
    gm_status st = gm_json_parse(&root, json, len, what, NULL, err);
    if (!st) st = from_json(out, root, what, err);
    json_decref(root);
    return st;
}

/* tokenizer_config.json has nothing that this tokenizer needs, but it can ask for things that would change
 * the ids or the text. The flag of a special token is tokenizer.json's: a list here only must not name
 * unknown tokens. */
static gm_status check_config(const gm_tokenizer *t, const json_t *root, const char *what, gm_error *err)
{
    static const char *const off[] = {"add_bos_token",    "add_eos_token",
                                      "add_prefix_space", "clean_up_tokenization_spaces",
                                      "do_lower_case",    "remove_space"};
    if (!json_is_object(root)) return gm_fail(err, GM_EFORMAT, "%s: not an object", what);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_false(json_object_get(root, off[i])))
            return gm_fail(err, GM_ENOTSUP, "%s: %s is not implemented", what, off[i]);
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(root, "extra_special_tokens"), i, v)
    {
        const json_t *s = json_is_object(v) ? json_object_get(v, "content") : v;
        if (!json_is_string(s) || gm_added_set_id(&t->added, json_string_value(s), json_string_length(s)) < 0)
            return gm_fail(err, GM_EFORMAT, "%s: extra_special_tokens[%zu] is not among the added tokens",
                           what, i);
    }
    return GM_OK;
}

gm_status gm_tokenizer_open(gm_tokenizer **out, const char *dir, gm_error *err)
{
    gm_str path = {0};
    json_t *root = NULL, *config = NULL;
    gm_tokenizer *t = NULL;
    gm_str_printf(&path, "%s/tokenizer.json", dir);
    gm_status st = gm_json_load(&root, gm_str_c(&path), NULL, err);
    if (!st) st = from_json(&t, root, gm_str_c(&path), err);
    gm_str_clear(&path);
    gm_str_printf(&path, "%s/tokenizer_config.json", dir);
    if (!st && access(gm_str_c(&path), F_OK) == 0) {
        st = gm_json_load(&config, gm_str_c(&path), NULL, err);
        if (!st) st = check_config(t, config, gm_str_c(&path), err);
    }
    json_decref(root);
    json_decref(config);
    gm_str_fini(&path);
    if (st) gm_tokenizer_close(t);
    else *out = t;
    return st;
}
