#include "text/tokenizer_internal.h"

#include <string.h>

#include "base/mem.h"

/* GPT-2's alphabet: printable bytes stand for themselves, the other 68 are U+0100 and on in their order. */
static bool stands_for_itself(uint32_t b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
}

uint32_t gm_byte_to_char(unsigned char b)
{
    if (stands_for_itself(b)) return b;
    if (b < 33) return 0x100u + b;
    if (b < 161) return 0x121u + (b - 127u);
    return 0x143u; /* 173 */
}

int gm_char_to_byte(uint32_t c)
{
    if (stands_for_itself(c)) return (int)c;
    if (c < 0x100 || c > 0x143) return -1;
    if (c < 0x121) return (int)(c - 0x100);
    return c == 0x143 ? 173 : (int)(c - 0x121 + 127);
}

void gm_tokenizer_close(gm_tokenizer *t)
{
    if (!t) return;
    gm_bpe_fini(&t->bpe);
    gm_added_set_fini(&t->added);
    gm_free(t->flags);
    gm_presplit_destroy(t->split);
    gm_free(t);
}

int32_t gm_tokenizer_size(const gm_tokenizer *t)
{
    return t->bpe.n_tokens;
}

int32_t gm_tokenizer_longest_token(const gm_tokenizer *t)
{
    return t->longest;
}

void gm_ids_push(gm_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        ids->cap = ids->cap ? 2 * ids->cap : 64;
        ids->data = gm_realloc_array(ids->data, ids->cap, sizeof *ids->data);
    }
    ids->data[ids->n++] = id;
}

static void reserve_ids(gm_ids *ids, size_t extra)
{
    if (ids->cap - ids->n >= extra) return;
    size_t cap = ids->cap ? ids->cap : 64;
    while (cap - ids->n < extra) cap *= 2;
    ids->data = gm_realloc_array(ids->data, cap, sizeof *ids->data);
    ids->cap = cap;
}

void gm_ids_fini(gm_ids *ids)
{
    gm_free(ids->data);
    *ids = (gm_ids){0};
}

/* One call's working memory. */
typedef struct encoding {
    const gm_tokenizer *t;
    gm_presplit_run *run;
    gm_bpe_scratch scratch;
    gm_ids *ids;
} encoding;

/* Text without added tokens: split into words, each word merged. */
static gm_status encode_piece(encoding *e, const char *text, size_t len, gm_error *err)
{
    for (size_t at = 0, end = 0; at < len; at = end) {
        gm_status st = gm_presplit_next(e->run, text, len, at, at == 0, &end, err);
        if (st) return st;
        reserve_ids(e->ids, end - at);
        int64_t n = gm_bpe_encode(&e->t->bpe, &e->scratch, text + at, end - at, e->ids->data + e->ids->n);
        if (n < 0) return gm_fail(err, GM_ENOMEM, "no memory to encode a word of %zu bytes", end - at);
        e->ids->n += (size_t)n;
    }
    return GM_OK;
}

static gm_status encode_text(encoding *e, const char *text, size_t len, const gm_text_range *ranges,
                             size_t n_ranges, gm_error *err)
{
    size_t done = 0;
    for (size_t i = 0; i < n_ranges; i++) {
        size_t at = ranges[i].begin, begin = 0, match_len = 0;
        int32_t id;
        GM_ASSERT(ranges[i].end <= len && at >= done);
        while ((id = gm_added_set_find(&e->t->added, text, at, ranges[i].end, &begin, &match_len)) >= 0) {
            gm_status st = encode_piece(e, text + done, begin - done, err);
            if (st) return st;
            gm_ids_push(e->ids, id);
            at = done = begin + match_len;
        }
    }
    return encode_piece(e, text + done, len - done, err);
}

gm_status gm_tokenizer_encode_ranges(const gm_tokenizer *t, const char *text, size_t len,
                                     const gm_text_range *ranges, size_t n_ranges, gm_ids *ids, gm_error *err)
{
    if (len > INT32_MAX)
        return gm_fail(err, GM_EARG, "a text of %zu bytes, at most %d can be encoded", len, INT32_MAX);
    if (gm_utf8_valid_len(text, len) != len) return gm_fail(err, GM_EARG, "the text is not UTF-8");
    if (!len) return GM_OK;
    encoding e = {.t = t, .ids = ids, .run = gm_presplit_start(t->split)};
    size_t n_before = ids->n;
    gm_status st = encode_text(&e, text, len, ranges, n_ranges, err);
    if (st) ids->n = n_before;
    gm_presplit_stop(e.run);
    gm_bpe_scratch_fini(&e.scratch);
    return st;
}

gm_status gm_tokenizer_encode(const gm_tokenizer *t, const char *text, size_t len, gm_added added,
                              gm_ids *ids, gm_error *err)
{
    gm_str mended = {0};
    if (len <= INT32_MAX && gm_utf8_valid_len(text, len) != len) {
        gm_text_scrub(&mended, text, len, false);
        text = mended.data;
        len = mended.len;
    }
    gm_text_range all = {0, len};
    gm_status st = gm_tokenizer_encode_ranges(t, text, len, &all, added == GM_ADDED_MATCH, ids, err);
    gm_str_fini(&mended);
    return st;
}

const char *gm_tokenizer_bytes(const gm_tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->bpe.n_tokens || !t->bpe.tokens[id].used) return NULL;
    *len = t->bpe.tokens[id].len;
    return t->bpe.bytes.data + t->bpe.tokens[id].at;
}

bool gm_tokenizer_is_added(const gm_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->bpe.n_tokens && (t->flags[id] & GM_TOKEN_ADDED);
}

bool gm_tokenizer_is_special(const gm_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->bpe.n_tokens && (t->flags[id] & GM_TOKEN_SPECIAL);
}

int32_t gm_tokenizer_added_id(const gm_tokenizer *t, const char *text)
{
    return gm_added_set_id(&t->added, text, strlen(text));
}

bool gm_tokenizer_token_string(const gm_tokenizer *t, int32_t id, gm_str *out)
{
    size_t len = 0;
    const char *bytes = gm_tokenizer_bytes(t, id, &len);
    if (!bytes) return false;
    if (gm_tokenizer_is_added(t, id)) gm_str_append(out, bytes, len);
    else
        for (size_t i = 0; i < len; i++) gm_str_put_utf8(out, gm_byte_to_char((unsigned char)bytes[i]));
    return true;
}

gm_status gm_tokenizer_decode(const gm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              gm_str *out, gm_error *err)
{
    gm_str raw = {0};
    for (size_t i = 0; i < n; i++) {
        size_t len = 0;
        const char *bytes = gm_tokenizer_bytes(t, ids[i], &len);
        if (!bytes) {
            gm_str_fini(&raw);
            return gm_fail(err, GM_EARG, "token id %d has no text", ids[i]);
        }
        if (!(skip_special && gm_tokenizer_is_special(t, ids[i]))) gm_str_append(&raw, bytes, len);
    }
    gm_text_scrub(out, gm_str_c(&raw), raw.len, false);
    gm_str_fini(&raw);
    return GM_OK;
}
