#include "text/bpe.h"

#include <string.h>
#include <xxhash.h>

#include "base/mem.h"

/* Up to this many symbols the lowest rank is found by looking at all pairs, which beats a heap there. */
#define SCAN_MAX 48

typedef struct gm_bpe_symbol {
    int32_t id;         /* -1: merged into the one before it */
    int32_t prev, next; /* -1: none */
} symbol;

gm_status gm_bpe_init(gm_bpe *b, int32_t n_tokens, size_t n_entries, gm_error *err)
{
    b->n_tokens = n_tokens;
    b->cap = 1024;
    while (b->cap < 2 * n_entries) b->cap *= 2;
    b->tokens = gm_try_alloc((size_t)n_tokens, sizeof *b->tokens);
    b->by_bytes = gm_try_alloc(b->cap, sizeof *b->by_bytes);
    if (!b->tokens || !b->by_bytes) return gm_fail(err, GM_ENOMEM, "no memory for %d tokens", n_tokens);
    memset(b->by_bytes, 0xFF, b->cap * sizeof *b->by_bytes);
    return GM_OK;
}

void gm_bpe_fini(gm_bpe *b)
{
    gm_str_fini(&b->bytes);
    gm_free(b->tokens);
    gm_free(b->by_bytes);
    gm_u64_map_fini(&b->merges);
    *b = (gm_bpe){0};
}

static size_t slot_of(const gm_bpe *b, const char *bytes, size_t len)
{
    size_t i = (size_t)XXH3_64bits(bytes, len) & (b->cap - 1);
    for (; b->by_bytes[i] >= 0; i = (i + 1) & (b->cap - 1)) {
        const gm_bpe_token *t = &b->tokens[b->by_bytes[i]];
        if (t->len == len && memcmp(b->bytes.data + t->at, bytes, len) == 0) break;
    }
    return i;
}

bool gm_bpe_add_literal(gm_bpe *b, int32_t id, const char *bytes, size_t len)
{
    gm_bpe_token *t = &b->tokens[id];
    if (t->used) return false;
    *t = (gm_bpe_token){.at = b->bytes.len, .len = (uint32_t)len, .used = true};
    gm_str_append(&b->bytes, bytes, len);
    return true;
}

bool gm_bpe_add(gm_bpe *b, int32_t id, const char *bytes, size_t len)
{
    size_t slot = slot_of(b, bytes, len);
    if (b->by_bytes[slot] >= 0 || !gm_bpe_add_literal(b, id, bytes, len)) return false;
    b->by_bytes[slot] = id;
    return true;
}

int32_t gm_bpe_find(const gm_bpe *b, const char *bytes, size_t len)
{
    return b->by_bytes[slot_of(b, bytes, len)];
}

void gm_bpe_scratch_fini(gm_bpe_scratch *s)
{
    gm_free(s->symbols);
    gm_free(s->heap);
    *s = (gm_bpe_scratch){0};
}

static uint64_t pair_merge(const gm_bpe *b, int32_t left, int32_t right)
{
    return gm_u64_map_get(&b->merges, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

/* The lowest rank first, among equals the leftmost: short words, by looking at all neighbours. */
static size_t merge_by_scan(const gm_bpe *b, int32_t *ids, size_t n)
{
    uint64_t found[SCAN_MAX];
    for (size_t i = 0; i + 1 < n; i++) found[i] = pair_merge(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (found[i] >> 32 < found[best] >> 32) best = i;
        if (found[best] == GM_U64_MAP_NONE) break;
        ids[best] = (int32_t)(found[best] & UINT32_MAX);
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        if (n > best + 2) memmove(found + best, found + best + 1, (n - best - 2) * sizeof *found);
        n--;
        if (best > 0) found[best - 1] = pair_merge(b, ids[best - 1], ids[best]);
        if (best + 1 < n) found[best] = pair_merge(b, ids[best], ids[best + 1]);
    }
    return n;
}

static bool scratch_room(gm_bpe_scratch *s, size_t len)
{
    if (s->cap < len) {
        gm_free(s->symbols);
        s->symbols = gm_try_alloc(len, sizeof *s->symbols);
        s->cap = s->symbols ? len : 0;
    }
    /* One entry a pair at first, and at most two more for each merge, which itself has taken one out. */
    if (s->cap_heap < 2 * len + 2) {
        gm_free(s->heap);
        s->heap = gm_try_alloc(2 * len + 2, sizeof *s->heap);
        s->cap_heap = s->heap ? 2 * len + 2 : 0;
    }
    s->n_heap = 0;
    return s->symbols && s->heap;
}

static void heap_push(gm_bpe_scratch *s, uint64_t v)
{
    GM_ASSERT(s->n_heap < s->cap_heap);
    size_t i = s->n_heap++;
    for (; i && s->heap[(i - 1) / 2] > v; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = v;
}

static uint64_t heap_pop(gm_bpe_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t kid = 2 * i + 1;
        if (kid >= s->n_heap) break;
        if (kid + 1 < s->n_heap && s->heap[kid + 1] < s->heap[kid]) kid++;
        if (s->heap[kid] >= last) break;
        s->heap[i] = s->heap[kid];
        i = kid;
    }
    s->heap[i] = last;
    return top;
}

/* Heap entries are rank << 32 | position of the left symbol; an entry whose pair has changed since is
 * skipped. */
static void push_pair(const gm_bpe *b, gm_bpe_scratch *s, int32_t at)
{
    if (at < 0 || s->symbols[at].next < 0) return;
    uint64_t m = pair_merge(b, s->symbols[at].id, s->symbols[s->symbols[at].next].id);
    if (m != GM_U64_MAP_NONE) heap_push(s, (m & ~(uint64_t)UINT32_MAX) | (uint32_t)at);
}

static void merge_by_heap(const gm_bpe *b, gm_bpe_scratch *s, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) push_pair(b, s, (int32_t)i);
    while (s->n_heap) {
        uint64_t e = heap_pop(s);
        int32_t at = (int32_t)(e & UINT32_MAX);
        symbol *left = &s->symbols[at];
        if (left->id < 0 || left->next < 0) continue;
        symbol *right = &s->symbols[left->next];
        uint64_t m = pair_merge(b, left->id, right->id);
        if (m == GM_U64_MAP_NONE || m >> 32 != e >> 32) continue;
        left->id = (int32_t)(m & UINT32_MAX);
        right->id = -1;
        left->next = right->next;
        if (left->next >= 0) s->symbols[left->next].prev = at;
        push_pair(b, s, left->prev);
        push_pair(b, s, at);
    }
}

int64_t gm_bpe_encode(const gm_bpe *b, gm_bpe_scratch *s, const char *word, size_t len, int32_t *out)
{
    if (b->ignore_merges || len == 1) {
        int32_t id = gm_bpe_find(b, word, len);
        if (id >= 0) {
            out[0] = id;
            return 1;
        }
    }
    if (len <= SCAN_MAX) {
        for (size_t i = 0; i < len; i++) out[i] = b->byte_ids[(unsigned char)word[i]];
        return (int64_t)merge_by_scan(b, out, len);
    }
    if (!scratch_room(s, len)) return -1;
    for (size_t i = 0; i < len; i++)
        s->symbols[i] = (symbol){.id = b->byte_ids[(unsigned char)word[i]],
                                 .prev = (int32_t)i - 1,
                                 .next = i + 1 < len ? (int32_t)i + 1 : -1};
    merge_by_heap(b, s, len);
    int64_t n = 0;
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next) out[n++] = s->symbols[i].id;
    return n;
}
