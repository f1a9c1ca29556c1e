#include "kv/prefix_tree.h"

#include <string.h>

#include <xxhash.h>

#include "base/mem.h"

enum { NONE = -1 };

typedef struct node {
    XXH128_hash_t hash; /* of the path up to and with this page */
    int64_t tick;       /* when it was last let go */
    int32_t parent, depth, n_children;
    int32_t chain;    /* next of the same bucket */
    int32_t heap_idx; /* NONE unless an evictable leaf */
    int32_t slot;     /* snapshot; NONE */
    bool used, held, moving;
} node;

typedef struct snapshot {
    int32_t page; /* NONE: this slot is no snapshot */
    int32_t prev; /* page of the nearest snapshot above it; NONE */
    int64_t base; /* the clock at its last use */
} snapshot;

struct gm_prefix_tree {
    int32_t n_pages, page_tokens, n_slots, n_buckets;
    node *nodes;         /* [n_pages] */
    int32_t *tokens;     /* [n_pages][page_tokens] */
    int32_t *buckets;    /* [n_buckets], a power of two */
    int32_t *heap;       /* [n_heap] evictable leaves, the next victim first */
    snapshot *snapshots; /* [n_slots] */
    int32_t *scratch;    /* [n_pages] of check() */
    uint8_t *key;        /* what is hashed for one page */
    int32_t n_heap, n_nodes, n_evictable, n_snapshots;
    int64_t ticks, clock;
};

gm_prefix_salt gm_prefix_salt_of(const void *bytes, size_t len)
{
    XXH128_hash_t h = XXH3_128bits(bytes, len);
    return (gm_prefix_salt){h.low64, h.high64};
}

/* ---- creation ---- */

static size_t key_bytes(const gm_prefix_tree *t)
{
    return sizeof(XXH128_hash_t) + (size_t)t->page_tokens * sizeof(int32_t);
}

gm_status gm_prefix_tree_create(gm_prefix_tree **out, int32_t n_pages, int32_t page_tokens, int32_t n_slots,
                                gm_error *err)
{
    GM_ASSERT(n_pages >= 1 && page_tokens >= 1 && n_slots >= 0);
    gm_prefix_tree *t = gm_try_alloc(1, sizeof *t);
    if (!t) return gm_fail(err, GM_ENOMEM, "prefix tree: no memory");
    t->n_pages = n_pages;
    t->page_tokens = page_tokens;
    t->n_slots = n_slots;
    for (t->n_buckets = 1; t->n_buckets < n_pages && t->n_buckets < 1 << 30;) t->n_buckets *= 2;
    size_t n = (size_t)n_pages;
    t->nodes = gm_try_alloc(n, sizeof *t->nodes);
    t->tokens = gm_try_alloc(n, (size_t)page_tokens * sizeof *t->tokens);
    t->buckets = gm_try_alloc((size_t)t->n_buckets, sizeof *t->buckets);
    t->heap = gm_try_alloc(n, sizeof *t->heap);
    t->scratch = gm_try_alloc(n, sizeof *t->scratch);
    t->snapshots = gm_try_alloc((size_t)n_slots + 1, sizeof *t->snapshots);
    t->key = gm_try_alloc(1, key_bytes(t));
    if (!t->nodes || !t->tokens || !t->buckets || !t->heap || !t->scratch || !t->snapshots || !t->key) {
        gm_prefix_tree_destroy(t);
        return gm_fail(err, GM_ENOMEM, "prefix tree: no memory for %d pages", n_pages);
    }
    for (int32_t i = 0; i < t->n_buckets; i++) t->buckets[i] = NONE;
    for (int32_t i = 0; i < n_slots; i++) t->snapshots[i].page = NONE;
    *out = t;
    return GM_OK;
}

void gm_prefix_tree_destroy(gm_prefix_tree *t)
{
    if (!t) return;
    gm_free(t->nodes);
    gm_free(t->tokens);
    gm_free(t->buckets);
    gm_free(t->heap);
    gm_free(t->scratch);
    gm_free(t->snapshots);
    gm_free(t->key);
    gm_free(t);
}

static node *node_of(const gm_prefix_tree *t, gm_page page)
{
    GM_ASSERT(gm_prefix_tree_has(t, page));
    return &t->nodes[page.id];
}

bool gm_prefix_tree_has(const gm_prefix_tree *t, gm_page page)
{
    GM_ASSERT(page.id >= 0 && page.id < t->n_pages);
    return t->nodes[page.id].used;
}

/* ---- content ---- */

static int32_t *tokens_of(const gm_prefix_tree *t, int32_t page)
{
    return t->tokens + (int64_t)page * t->page_tokens;
}

static XXH128_hash_t hash_page(const gm_prefix_tree *t, gm_page parent, gm_prefix_salt salt,
                               const int32_t *tokens)
{
    XXH128_hash_t from = {salt.lo, salt.hi};
    if (parent.id >= 0) from = node_of(t, parent)->hash;
    memcpy(t->key, &from, sizeof from);
    memcpy(t->key + sizeof from, tokens, (size_t)t->page_tokens * sizeof *tokens);
    return XXH3_128bits(t->key, key_bytes(t));
}

static int32_t *bucket_of(const gm_prefix_tree *t, XXH128_hash_t h)
{
    return &t->buckets[h.low64 & (uint64_t)(t->n_buckets - 1)];
}

gm_page gm_prefix_tree_find(gm_prefix_tree *t, gm_page parent, gm_prefix_salt salt, const int32_t *tokens)
{
    XXH128_hash_t h = hash_page(t, parent, salt, tokens);
    for (int32_t id = *bucket_of(t, h); id != NONE; id = t->nodes[id].chain) {
        const node *n = &t->nodes[id];
        if (XXH128_isEqual(n->hash, h) && n->parent == (parent.id >= 0 ? parent.id : NONE) &&
            memcmp(tokens_of(t, id), tokens, (size_t)t->page_tokens * sizeof *tokens) == 0)
            return (gm_page){id};
    }
    return GM_PAGE_NONE;
}

/* ---- the heap of evictable leaves ---- */

/* Nothing can resume from a leaf without a state; what lies above it is another matter. */
static bool worthless(const gm_prefix_tree *t, int32_t id)
{
    return t->n_slots > 0 && t->nodes[id].slot == NONE;
}

static bool before(const gm_prefix_tree *t, int32_t i, int32_t j)
{
    int32_t a = t->heap[i], b = t->heap[j];
    if (worthless(t, a) != worthless(t, b)) return worthless(t, a);
    return t->nodes[a].tick < t->nodes[b].tick;
}

static void place(gm_prefix_tree *t, int32_t i, int32_t id)
{
    t->heap[i] = id;
    t->nodes[id].heap_idx = i;
}

static void swap(gm_prefix_tree *t, int32_t i, int32_t j)
{
    int32_t a = t->heap[i];
    place(t, i, t->heap[j]);
    place(t, j, a);
}

static void settle(gm_prefix_tree *t, int32_t i)
{
    for (; i > 0 && before(t, i, (i - 1) / 2); i = (i - 1) / 2) swap(t, i, (i - 1) / 2);
    for (;;) {
        int32_t least = i, left = 2 * i + 1;
        if (left < t->n_heap && before(t, left, least)) least = left;
        if (left + 1 < t->n_heap && before(t, left + 1, least)) least = left + 1;
        if (least == i) return;
        swap(t, i, least);
        i = least;
    }
}

static void heap_put(gm_prefix_tree *t, int32_t id)
{
    place(t, t->n_heap++, id);
    settle(t, t->nodes[id].heap_idx);
}

static void heap_take(gm_prefix_tree *t, int32_t id)
{
    int32_t i = t->nodes[id].heap_idx;
    GM_ASSERT(i >= 0 && i < t->n_heap && t->heap[i] == id);
    t->nodes[id].heap_idx = NONE;
    int32_t last = t->heap[--t->n_heap];
    if (last == id) return;
    place(t, i, last);
    settle(t, i);
}

/* After a change of held, children or snapshot. */
static void heap_update(gm_prefix_tree *t, int32_t id)
{
    node *n = &t->nodes[id];
    bool in = !n->held && n->n_children == 0;
    if (in && n->heap_idx != NONE) settle(t, n->heap_idx);
    else if (in) heap_put(t, id);
    else if (n->heap_idx != NONE) heap_take(t, id);
}

/* ---- nodes ---- */

void gm_prefix_tree_insert(gm_prefix_tree *t, gm_page page, gm_page parent, gm_prefix_salt salt,
                           const int32_t *tokens)
{
    GM_ASSERT(!gm_prefix_tree_has(t, page));
    node *n = &t->nodes[page.id];
    *n = (node){.hash = hash_page(t, parent, salt, tokens),
                .parent = NONE,
                .heap_idx = NONE,
                .slot = NONE,
                .used = true,
                .held = true};
    if (parent.id >= 0) {
        node *up = node_of(t, parent);
        GM_ASSERT(up->held);
        n->parent = parent.id;
        n->depth = up->depth + 1;
        up->n_children++;
    }
    memcpy(tokens_of(t, page.id), tokens, (size_t)t->page_tokens * sizeof *tokens);
    int32_t *b = bucket_of(t, n->hash);
    n->chain = *b;
    *b = page.id;
    t->n_nodes++;
}

void gm_prefix_tree_hold(gm_prefix_tree *t, gm_page page)
{
    node *n = node_of(t, page);
    GM_ASSERT(!n->held && (n->parent == NONE || t->nodes[n->parent].held));
    n->held = true;
    t->n_evictable--;
    heap_update(t, page.id);
}

void gm_prefix_tree_let_go(gm_prefix_tree *t, gm_page page)
{
    node *n = node_of(t, page);
    GM_ASSERT(n->held);
    n->held = false;
    n->tick = ++t->ticks;
    t->n_evictable++;
    heap_update(t, page.id);
}

gm_page gm_prefix_tree_victim(const gm_prefix_tree *t)
{
    return t->n_heap > 0 ? (gm_page){t->heap[0]} : GM_PAGE_NONE;
}

void gm_prefix_tree_remove(gm_prefix_tree *t, gm_page page)
{
    node *n = node_of(t, page);
    GM_ASSERT(!n->held && n->n_children == 0 && n->slot == NONE);
    heap_take(t, page.id);
    int32_t *link = bucket_of(t, n->hash);
    while (*link != page.id) link = &t->nodes[*link].chain;
    *link = n->chain;
    n->used = false;
    t->n_nodes--;
    t->n_evictable--;
    if (n->parent == NONE) return;
    t->nodes[n->parent].n_children--;
    heap_update(t, n->parent);
}

/* ---- snapshots ---- */

static int32_t snapshot_above(const gm_prefix_tree *t, int32_t id)
{
    int32_t up = t->nodes[id].parent;
    while (up != NONE && t->nodes[up].slot == NONE) up = t->nodes[up].parent;
    return up;
}

static int64_t gain(const gm_prefix_tree *t, int32_t page, int32_t prev)
{
    int32_t above = prev == NONE ? -1 : t->nodes[prev].depth;
    return (int64_t)(t->nodes[page].depth - above) * t->page_tokens;
}

gm_slot gm_prefix_tree_snapshot(const gm_prefix_tree *t, gm_page page)
{
    return (gm_slot){node_of(t, page)->slot};
}

gm_page gm_prefix_tree_snapshot_page(const gm_prefix_tree *t, gm_slot slot)
{
    GM_ASSERT(slot.id >= 0 && slot.id < t->n_slots);
    return (gm_page){t->snapshots[slot.id].page};
}

void gm_prefix_tree_put_snapshot(gm_prefix_tree *t, gm_page page, gm_slot slot, bool moving)
{
    node *n = node_of(t, page);
    GM_ASSERT(n->slot == NONE && slot.id >= 0 && slot.id < t->n_slots && t->snapshots[slot.id].page == NONE);
    n->slot = slot.id;
    n->moving = moving;
    t->snapshots[slot.id] = (snapshot){page.id, snapshot_above(t, page.id), t->clock};
    t->n_snapshots++;
    heap_update(t, page.id);
    if (n->n_children == 0) return;
    for (int32_t i = 0; i < t->n_slots; i++) { /* those below it that saw past it */
        snapshot *s = &t->snapshots[i];
        if (s->page == NONE || i == slot.id || s->prev != t->snapshots[slot.id].prev) continue;
        if (snapshot_above(t, s->page) == page.id) s->prev = page.id;
    }
}

gm_slot gm_prefix_tree_drop_snapshot(gm_prefix_tree *t, gm_page page)
{
    node *n = node_of(t, page);
    int32_t slot = n->slot;
    GM_ASSERT(slot != NONE);
    for (int32_t i = 0; i < t->n_slots; i++)
        if (t->snapshots[i].page != NONE && t->snapshots[i].prev == page.id)
            t->snapshots[i].prev = t->snapshots[slot].prev;
    t->snapshots[slot].page = NONE;
    n->slot = NONE;
    n->moving = false;
    t->n_snapshots--;
    heap_update(t, page.id);
    return (gm_slot){slot};
}

bool gm_prefix_tree_moving(const gm_prefix_tree *t, gm_page page)
{
    return node_of(t, page)->moving;
}

void gm_prefix_tree_use_snapshot(gm_prefix_tree *t, gm_page page)
{
    node *n = node_of(t, page);
    GM_ASSERT(n->slot != NONE);
    n->moving = false;
    t->snapshots[n->slot].base = t->clock;
}

static gm_page lowest_snapshot(const gm_prefix_tree *t, gm_page spare, int64_t *rank)
{
    gm_page best = GM_PAGE_NONE;
    for (int32_t i = 0; i < t->n_slots; i++) {
        const snapshot *s = &t->snapshots[i];
        if (s->page == NONE || s->page == spare.id) continue;
        int64_t r = s->base + gain(t, s->page, s->prev);
        if (best.id >= 0 && r >= *rank) continue;
        best = (gm_page){s->page};
        *rank = r;
    }
    return best;
}

static void advance_clock(gm_prefix_tree *t, int64_t to)
{
    if (to > t->clock) t->clock = to;
}

gm_page gm_prefix_tree_snapshot_victim(gm_prefix_tree *t, gm_page spare)
{
    int64_t rank = 0;
    gm_page victim = lowest_snapshot(t, spare, &rank);
    if (victim.id >= 0) advance_clock(t, rank);
    return victim;
}

gm_page gm_prefix_tree_lesser_snapshot(gm_prefix_tree *t, gm_page page, bool insist)
{
    int64_t rank = 0, own = t->clock + gain(t, page.id, snapshot_above(t, page.id));
    gm_page victim = lowest_snapshot(t, GM_PAGE_NONE, &rank);
    if (victim.id >= 0 && (insist ? rank <= own : rank < own)) {
        advance_clock(t, rank);
        return victim;
    }
    if (insist) t->clock = own;
    return GM_PAGE_NONE;
}

int32_t gm_prefix_tree_nodes(const gm_prefix_tree *t)
{
    return t->n_nodes;
}

int32_t gm_prefix_tree_evictable(const gm_prefix_tree *t)
{
    return t->n_evictable;
}

int32_t gm_prefix_tree_snapshots(const gm_prefix_tree *t)
{
    return t->n_snapshots;
}

bool gm_prefix_tree_held(const gm_prefix_tree *t, gm_page page)
{
    return node_of(t, page)->held;
}

/* ---- proof ---- */

static gm_status check_node(gm_prefix_tree *t, int32_t id, gm_error *err)
{
    const node *n = &t->nodes[id];
    if (n->parent != NONE) {
        const node *up = &t->nodes[n->parent];
        if (!up->used || up->depth + 1 != n->depth || (n->held && !up->held))
            return gm_fail(err, GM_EINTERNAL, "node %d: parent %d does not fit", id, n->parent);
        XXH128_hash_t h = hash_page(t, (gm_page){n->parent}, (gm_prefix_salt){0}, tokens_of(t, id));
        if (!XXH128_isEqual(h, n->hash)) return gm_fail(err, GM_EINTERNAL, "node %d: its tokens changed", id);
        t->scratch[n->parent]++;
    } else if (n->depth != 0) {
        return gm_fail(err, GM_EINTERNAL, "node %d: no parent at depth %d", id, n->depth);
    }
    int32_t at = *bucket_of(t, n->hash);
    while (at != NONE && at != id) at = t->nodes[at].chain;
    if (at != id) return gm_fail(err, GM_EINTERNAL, "node %d: not in its bucket", id);
    if (n->slot != NONE && (n->slot >= t->n_slots || t->snapshots[n->slot].page != id))
        return gm_fail(err, GM_EINTERNAL, "node %d: slot %d is not its snapshot", id, n->slot);
    return GM_OK;
}

static gm_status check_leaf(const gm_prefix_tree *t, int32_t id, gm_error *err)
{
    const node *n = &t->nodes[id];
    if (t->scratch[id] != n->n_children)
        return gm_fail(err, GM_EINTERNAL, "node %d: %d children, %d counted", id, t->scratch[id],
                       n->n_children);
    bool in = !n->held && n->n_children == 0;
    if (in != (n->heap_idx != NONE) || (in && (n->heap_idx >= t->n_heap || t->heap[n->heap_idx] != id)))
        return gm_fail(err, GM_EINTERNAL, "node %d: place %d among the evictable leaves", id, n->heap_idx);
    if (in && n->heap_idx > 0 && before(t, n->heap_idx, (n->heap_idx - 1) / 2))
        return gm_fail(err, GM_EINTERNAL, "node %d: evictable leaves out of order", id);
    return GM_OK;
}

static gm_status check_snapshots(const gm_prefix_tree *t, gm_error *err)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_slots; i++) {
        const snapshot *s = &t->snapshots[i];
        if (s->page == NONE) continue;
        n++;
        if (!t->nodes[s->page].used || t->nodes[s->page].slot != i)
            return gm_fail(err, GM_EINTERNAL, "slot %d: snapshot of page %d, which does not know it", i,
                           s->page);
        if (s->prev != snapshot_above(t, s->page))
            return gm_fail(err, GM_EINTERNAL, "slot %d: the snapshot above it is not of page %d", i, s->prev);
    }
    if (n != t->n_snapshots) return gm_fail(err, GM_EINTERNAL, "%d snapshots, %d counted", n, t->n_snapshots);
    return GM_OK;
}

gm_status gm_prefix_tree_check(gm_prefix_tree *t, gm_error *err)
{
    int32_t n_nodes = 0, n_evictable = 0, n_leaves = 0;
    gm_status st;
    memset(t->scratch, 0, (size_t)t->n_pages * sizeof *t->scratch);
    for (int32_t id = 0; id < t->n_pages; id++) {
        const node *n = &t->nodes[id];
        if (!n->used) continue;
        n_nodes++;
        n_evictable += !n->held;
        if ((st = check_node(t, id, err))) return st;
    }
    for (int32_t id = 0; id < t->n_pages; id++) {
        if (!t->nodes[id].used) continue;
        n_leaves += t->nodes[id].heap_idx != NONE;
        if ((st = check_leaf(t, id, err))) return st;
    }
    if (n_nodes != t->n_nodes || n_evictable != t->n_evictable || n_leaves != t->n_heap)
        return gm_fail(err, GM_EINTERNAL,
                       "prefix tree: %d nodes, %d evictable, %d leaves; counted %d, %d, %d", n_nodes,
                       n_evictable, n_leaves, t->n_nodes, t->n_evictable, t->n_heap);
    return check_snapshots(t, err);
}
