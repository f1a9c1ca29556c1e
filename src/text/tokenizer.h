/* Byte-level BPE from a Hugging Face tokenizer.json: added tokens matched on the raw text, a PCRE2 pre-split,
 * ignore_merges. Immutable after opening: any number of threads may encode and decode at once. */
#ifndef GM_TEXT_TOKENIZER_H
#define GM_TEXT_TOKENIZER_H

#include "base/str.h"

typedef struct gm_tokenizer gm_tokenizer;

/* Open <dir>/tokenizer.json (and tokenizer_config.json beside it, if there). Whatever the file asks for that is
 * not implemented (another model, normaliser, pre-tokenizer) is refused by name. */
gm_status gm_tokenizer_open(gm_tokenizer **out, const char *dir, gm_error *err);
/* From the text of a tokenizer.json. */
gm_status gm_tokenizer_parse(gm_tokenizer **out, const char *json, size_t len, const char *what, gm_error *err);
void gm_tokenizer_close(gm_tokenizer *t);

int32_t gm_tokenizer_size(const gm_tokenizer *t); /* highest id + 1 */
int32_t gm_tokenizer_longest_token(const gm_tokenizer *t); /* in characters; for the early length test */

typedef struct gm_ids {
    int32_t *data;
    size_t n, cap;
} gm_ids;
void gm_ids_push(gm_ids *ids, int32_t id);
void gm_ids_fini(gm_ids *ids);

typedef enum gm_added {
    GM_ADDED_MATCH, /* added tokens in the text become their single ids (as Hugging Face does) */
    GM_ADDED_PLAIN, /* the text is ordinary text: no added token is matched */
} gm_added;

/* Append the ids of text[0..len). len at most INT32_MAX. Bytes that are not UTF-8 are encoded as U+FFFD. */
gm_status gm_tokenizer_encode(const gm_tokenizer *t, const char *text, size_t len, gm_added added, gm_ids *ids,
                              gm_error *err);

/* Bytes of a token as it stands in the output (added tokens: their literal text); NULL: no such id. */
const char *gm_tokenizer_bytes(const gm_tokenizer *t, int32_t id, size_t *len);
bool gm_tokenizer_is_added(const gm_tokenizer *t, int32_t id);
bool gm_tokenizer_is_special(const gm_tokenizer *t, int32_t id); /* added and flagged special */
/* Id of an added token by its text; -1: none. */
int32_t gm_tokenizer_added_id(const gm_tokenizer *t, const char *text);
/* Append the token as the vocabulary writes it (byte-mapped), for return_token_strs. False: no such id. */
bool gm_tokenizer_token_string(const gm_tokenizer *t, int32_t id, gm_str *out);
/* Append the text of ids, invalid UTF-8 replaced by U+FFFD; skip_special drops special tokens. */
gm_status gm_tokenizer_decode(const gm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, gm_str *out,
                              gm_error *err);

#endif
