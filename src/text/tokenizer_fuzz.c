/* tokenizer.json from anywhere: it is refused or it encodes, and what it encodes decodes to the same text.
 * Half of the inputs are put into a file that is right but for one part, so that the deeper checks are
 * reached. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/json.h"
#include "text/detok.h"
#include "text/text_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const gm_tokenizer *t, const char *text, size_t len, gm_added added)
{
    gm_ids ids = {0};
    gm_str out = {0}, piece = {0}, want = {0};
    gm_detok d;
    if (!gm_tokenizer_encode(t, text, len, added, &ids, NULL)) {
        if (gm_tokenizer_decode(t, ids.data, ids.n, false, &out, NULL)) abort();
        gm_text_scrub(&want, text, len, false);
        if (out.len != want.len || (out.len && memcmp(out.data, want.data, out.len) != 0)) abort();
        gm_detok_init(&d, t, false);
        for (size_t i = 0; i < ids.n; i++)
            if (gm_detok_push(&d, ids.data[i], &piece, NULL)) abort();
        gm_detok_finish(&d, &piece);
        if (piece.len != out.len || (out.len && memcmp(out.data, piece.data, out.len) != 0)) abort();
    }
    gm_ids_fini(&ids);
    gm_str_fini(&out);
    gm_str_fini(&piece);
    gm_str_fini(&want);
}

static const char *const parts[] = {"model",         "vocab",   "merges",     "added_tokens",
                                    "pre_tokenizer", "decoder", "normalizer", "post_processor"};

/* A small right file; part `which` replaced. */
static json_t *with_part(size_t which, json_t *part)
{
    json_t *vocab = json_object(), *root;
    for (int b = 0; b < 256; b++) {
        static const char *const rest = "";
        gm_str s = {0};
        bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        uint32_t c = self      ? (uint32_t)b
                     : b < 33  ? 0x100u + (uint32_t)b
                     : b < 161 ? 0x121u + (uint32_t)b - 127u
                               : 0x143u;
        gm_str_put_utf8(&s, c);
        json_object_set_new(vocab, s.data ? s.data : rest, json_integer(b));
        gm_str_fini(&s);
    }
    json_object_set_new(vocab, "ab", json_integer(256));
    json_object_set_new(vocab, "abc", json_integer(257));
    root = json_pack(
        "{s:{s:s,s:b,s:o,s:[s,[s,s]]},s:[{s:i,s:s,s:b}],s:{s:s,s:[{s:s,s:{s:s},s:s},{s:s,s:b,s:b}]},s:{s:s}}",
        "model", "type", "BPE", "ignore_merges", 1, "vocab", vocab, "merges", "a b", "ab", "c",
        "added_tokens", "id", 258, "content", "<x>", "special", 1, "pre_tokenizer", "type", "Sequence",
        "pretokenizers", "type", "Split", "pattern", "Regex", "\\s+|\\p{L}+|.", "behavior", "Isolated",
        "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0, "decoder", "type", "ByteLevel");
    if (!root) abort();
    json_t *holder = which == 1 || which == 2 ? json_object_get(root, "model") : root;
    if (which < sizeof parts / sizeof *parts) json_object_set_new(holder, parts[which], part);
    else json_decref(part);
    return root;
}

static bool try_text(const char *json, size_t len, const char *text, size_t text_len)
{
    gm_tokenizer *t = NULL;
    if (gm_tokenizer_parse(&t, json, len, "fuzz", NULL)) return false;
    use(t, text, text_len, GM_ADDED_MATCH);
    use(t, text, text_len, GM_ADDED_PLAIN);
    gm_tokenizer_close(t);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    const char *s = (const char *)data + 1;
    json_t *part = NULL;
    try_text(s, size - 1, "ab c\n", 5);
    if (gm_json_parse(&part, s, size - 1, "fuzz", NULL, NULL)) {
        part = json_null();
        json_t *root = with_part(99, part);
        gm_str file = {0};
        gm_json_put(&file, root);
        if (!try_text(file.data, file.len, s, size - 1)) abort();
        gm_str_fini(&file);
        json_decref(root);
        return 0;
    }
    json_t *root = with_part(data[0] % (sizeof parts / sizeof *parts), part);
    gm_str file = {0};
    gm_json_put(&file, root);
    if (file.len) try_text(file.data, file.len, "abc <x> abab\xff  \n", 16);
    gm_str_fini(&file);
    json_decref(root);
    return 0;
}
