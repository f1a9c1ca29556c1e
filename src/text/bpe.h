/* The vocabulary of a byte-level BPE and its merges, on raw bytes (the printable alphabet of tokenizer.json
 * is undone when the file is read). All 256 single bytes are in the vocabulary, so that every word can be
 * encoded. */
#ifndef GM_TEXT_BPE_H
#define GM_TEXT_BPE_H

#include "base/str.h"
#include "text/u64_map.h"

typedef struct gm_bpe_token {
    size_t at; /* in bytes */
    uint32_t len;
    bool used;
} gm_bpe_token;

typedef struct gm_bpe {
    gm_str bytes; /* of all tokens, one after another */
    gm_bpe_token *tokens;
    int32_t n_tokens;  /* highest id + 1 */
    int32_t *by_bytes; /* hash table of ids, -1: free */
    size_t cap;        /* of by_bytes, a power of two */
    gm_u64_map merges; /* left id << 32 | right id -> rank << 32 | merged id */
    int32_t byte_ids[256];
    bool ignore_merges; /* a word that is in the vocabulary is emitted whole */
} gm_bpe;

/* Room for ids 0..n_tokens-1 and about n_entries tokens. */
gm_status gm_bpe_init(gm_bpe *b, int32_t n_tokens, size_t n_entries, gm_error *err);
void gm_bpe_fini(gm_bpe *b);
/* False: the id is taken. */
bool gm_bpe_add(gm_bpe *b, int32_t id, const char *bytes, size_t len);
/* The same for a token that no ordinary text becomes: it has bytes but gm_bpe_find() does not see it. */
bool gm_bpe_add_literal(gm_bpe *b, int32_t id, const char *bytes, size_t len);
int32_t gm_bpe_find(const gm_bpe *b, const char *bytes, size_t len); /* -1: none */

/* What encoding a word needs, reused from word to word. Zero-initialise it. */
typedef struct gm_bpe_scratch {
    struct gm_bpe_symbol *symbols;
    size_t cap;
    uint64_t *heap;
    size_t n_heap, cap_heap;
} gm_bpe_scratch;
void gm_bpe_scratch_fini(gm_bpe_scratch *s);

/* Encode one word (len > 0): ids to out[0..), which has room for len. Returns how many; -1: out of memory. */
int64_t gm_bpe_encode(const gm_bpe *b, gm_bpe_scratch *s, const char *word, size_t len, int32_t *out);

#endif
