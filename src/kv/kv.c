#include "kv/kv.h"

#include "base/mem.h"

#include <string.h>

struct gm_kv {
    gm_page_pool *pages;
    gm_state_pool *slots;
    int32_t page_tokens, seq_pages;
    gm_kv_seq *holders; /* every sequence that holds a page or a slot */
    int32_t *seen;      /* [n_pages] scratch of gm_kv_check() */
    gm_prefix_tree *tree; /* NULL: no prefix caching. It counts as one holder of each of its pages */
    gm_kv_cached totals;
};

gm_status gm_kv_create(gm_kv **out, const gm_kv_params *params, gm_error *err)
{
    if (params->page_tokens < 1) return gm_fail(err, GM_EARG, "kv: %d tokens a page", params->page_tokens);
    if (params->seq_pages < 0) return gm_fail(err, GM_EARG, "kv: %d pages a sequence", params->seq_pages);
    gm_kv *kv = gm_try_alloc(1, sizeof *kv);
    if (!kv) return gm_fail(err, GM_ENOMEM, "kv: no memory");
    kv->page_tokens = params->page_tokens;
    kv->seq_pages = params->seq_pages;

    gm_status st = gm_page_pool_create(&kv->pages, params->n_pages, err);
    if (st) goto fail;
    st = gm_state_pool_create(&kv->slots, params->n_slots, err);
    if (st) goto fail;
    kv->seen = gm_try_alloc((size_t)params->n_pages, sizeof *kv->seen);
    if (!kv->seen) {
        st = gm_fail(err, GM_ENOMEM, "kv: no memory for %d pages", params->n_pages);
        goto fail;
    }
    if (params->prefix_caching)
        st = gm_prefix_tree_create(&kv->tree, params->n_pages, params->page_tokens, params->n_slots, err);
    if (st) goto fail;
    *out = kv;
    return GM_OK;

fail:
    gm_kv_destroy(kv);
    return st;
}

void gm_kv_destroy(gm_kv *kv)
{
    if (!kv) return;
    GM_ASSERT(!kv->holders);
    gm_prefix_tree_destroy(kv->tree);
    gm_page_pool_destroy(kv->pages);
    gm_state_pool_destroy(kv->slots);
    gm_free(kv->seen);
    gm_free(kv);
}

static int32_t pages_for(int32_t n_tokens, int32_t page_tokens)
{
    return n_tokens / page_tokens + (n_tokens % page_tokens != 0);
}

gm_status gm_kv_seq_init(gm_kv_seq *seq, int32_t page_tokens, int32_t tokens_max, gm_error *err)
{
    GM_ASSERT(page_tokens >= 1 && tokens_max >= 1);
    int32_t cap = pages_for(tokens_max, page_tokens);
    *seq = (gm_kv_seq){.slot = GM_SLOT_NONE, .cap_pages = cap, .load_from = GM_SLOT_NONE, .moving_idx = -1};
    seq->pages = gm_try_alloc((size_t)cap, sizeof *seq->pages);
    if (!seq->pages) return gm_fail(err, GM_ENOMEM, "page table: no memory for %d entries", cap);
    return GM_OK;
}

void gm_kv_seq_fini(gm_kv_seq *seq)
{
    GM_ASSERT(!seq->listed);
    gm_free(seq->pages);
    *seq = (gm_kv_seq){.slot = GM_SLOT_NONE};
}

static void list(gm_kv *kv, gm_kv_seq *seq)
{
    if (seq->listed) return;
    seq->listed = true;
    seq->prev = NULL;
    seq->next = kv->holders;
    if (kv->holders) kv->holders->prev = seq;
    kv->holders = seq;
}

static void unlist(gm_kv *kv, gm_kv_seq *seq)
{
    if (!seq->listed) return;
    if (seq->prev) seq->prev->next = seq->next;
    else kv->holders = seq->next;
    if (seq->next) seq->next->prev = seq->prev;
    seq->prev = seq->next = NULL;
    seq->listed = false;
}

/* ---- pages ---- */

/* One holder more or less. The tree is told when the first comes and the last leaves. */
static void hold_page(gm_kv *kv, gm_page page)
{
    gm_page_pool_pin(kv->pages, page);
    if (kv->tree && gm_prefix_tree_has(kv->tree, page) && gm_page_pool_refs(kv->pages, page) == 2)
        gm_prefix_tree_hold(kv->tree, page);
}

static void let_page_go(gm_kv *kv, gm_page page)
{
    gm_page_pool_unpin(kv->pages, page);
    if (kv->tree && gm_prefix_tree_has(kv->tree, page) && gm_page_pool_refs(kv->pages, page) == 1)
        gm_prefix_tree_let_go(kv->tree, page);
}

/* False: it has none. */
static bool forget_snapshot(gm_kv *kv, gm_page page)
{
    if (gm_prefix_tree_snapshot(kv->tree, page).id < 0) return false;
    gm_state_pool_give(kv->slots, gm_prefix_tree_drop_snapshot(kv->tree, page));
    return true;
}

/* The next victim. */
static void forget_page(gm_kv *kv)
{
    gm_page page = gm_prefix_tree_victim(kv->tree);
    (void)forget_snapshot(kv, page);
    gm_prefix_tree_remove(kv->tree, page);
    gm_page_pool_unpin(kv->pages, page);
}

static void evict_snapshot(gm_kv *kv, gm_page page)
{
    kv->totals.snapshots_evicted += forget_snapshot(kv, page);
}

/* Until n pages are free; the caller knows that it can be done. */
static void make_room(gm_kv *kv, int32_t n)
{
    while (gm_page_pool_free(kv->pages) < n) {
        int32_t before = gm_prefix_tree_snapshots(kv->tree);
        forget_page(kv);
        kv->totals.pages_evicted++;
        kv->totals.snapshots_evicted += before - gm_prefix_tree_snapshots(kv->tree);
    }
}

gm_status gm_kv_grow(gm_kv *kv, gm_kv_seq *seq, int32_t n_tokens)
{
    int32_t need = gm_kv_pages_for(kv, n_tokens);
    GM_ASSERT(need <= seq->cap_pages);
    if (need <= seq->n_pages) return GM_OK;
    if (need - seq->n_pages > gm_kv_pages_free(kv)) return GM_ECAPACITY;
    make_room(kv, need - seq->n_pages);
    gm_status st = gm_page_pool_take(kv->pages, need - seq->n_pages, seq->pages + seq->n_pages);
    GM_ASSERT(st == GM_OK);
    seq->n_pages = need;
    list(kv, seq);
    return GM_OK;
}

/* ---- slots ---- */

gm_status gm_kv_take_slot(gm_kv *kv, gm_kv_seq *seq)
{
    if (seq->slot.id >= 0 || gm_state_pool_total(kv->slots) == 0) return GM_OK;
    if (gm_state_pool_free(kv->slots) == 0 && kv->tree) {
        gm_page from = seq->load_from.id < 0 ? GM_PAGE_NONE : gm_prefix_tree_snapshot_page(kv->tree, seq->load_from);
        gm_page victim = gm_prefix_tree_snapshot_victim(kv->tree, from);
        if (victim.id < 0 && from.id >= 0) { /* the only one: the sequence goes on in it */
            victim = from;
            seq->load_from = GM_SLOT_NONE;
        }
        if (victim.id >= 0) evict_snapshot(kv, victim);
    }
    gm_status st = gm_state_pool_take(kv->slots, &seq->slot);
    if (st) return st;
    list(kv, seq);
    return GM_OK;
}

bool gm_kv_take_load(gm_kv_seq *seq, gm_slot_copy *copy)
{
    if (seq->load_from.id < 0 || seq->slot.id < 0) return false;
    *copy = (gm_slot_copy){seq->load_from, seq->slot};
    seq->load_from = GM_SLOT_NONE;
    return true;
}

void gm_kv_release(gm_kv *kv, gm_kv_seq *seq)
{
    for (int32_t i = seq->n_pages - 1; i >= 0; i--) let_page_go(kv, seq->pages[i]);
    seq->n_pages = seq->n_shared = 0;
    if (seq->slot.id >= 0) gm_state_pool_give(kv->slots, seq->slot);
    seq->slot = seq->load_from = GM_SLOT_NONE;
    seq->moving_idx = -1;
    unlist(kv, seq);
}

/* ---- prefix caching ---- */

static bool has_state(const gm_kv *kv)
{
    return gm_state_pool_total(kv->slots) > 0;
}

int32_t gm_kv_resume(gm_kv *kv, gm_kv_seq *seq, gm_prefix_salt salt, const int32_t *tokens, int32_t n_max,
                     int32_t *n_matched)
{
    GM_ASSERT(seq->n_pages == 0 && seq->slot.id < 0);
    *n_matched = 0;
    if (!kv->tree) return 0;
    int32_t n_found = 0, n_kept = 0, most = n_max / kv->page_tokens;
    gm_page at = GM_PAGE_NONE;
    for (; n_found < most && n_found < seq->cap_pages; n_found++) {
        at = gm_prefix_tree_find(kv->tree, at, salt, tokens + (int64_t)n_found * kv->page_tokens);
        if (at.id < 0) break;
        seq->pages[n_found] = at;
        if (!has_state(kv) || gm_prefix_tree_snapshot(kv->tree, at).id >= 0) n_kept = n_found + 1;
    }
    *n_matched = n_found * kv->page_tokens;
    for (int32_t i = 0; i < n_kept; i++) hold_page(kv, seq->pages[i]);
    seq->n_pages = seq->n_shared = n_kept;
    if (n_kept == 0) return 0;
    list(kv, seq);
    if (has_state(kv)) {
        seq->load_from = gm_prefix_tree_snapshot(kv->tree, seq->pages[n_kept - 1]);
        gm_prefix_tree_use_snapshot(kv->tree, seq->pages[n_kept - 1]);
    }
    return n_kept * kv->page_tokens;
}

void gm_kv_share(gm_kv *kv, gm_kv_seq *seq, gm_prefix_salt salt, const int32_t *tokens, int32_t n_computed)
{
    if (!kv->tree) return;
    GM_ASSERT(n_computed / kv->page_tokens <= seq->n_pages);
    for (; seq->n_shared < n_computed / kv->page_tokens; seq->n_shared++) {
        int32_t i = seq->n_shared;
        const int32_t *of_page = tokens + (int64_t)i * kv->page_tokens;
        gm_page above = i > 0 ? seq->pages[i - 1] : GM_PAGE_NONE, own = seq->pages[i];
        gm_page known = gm_prefix_tree_find(kv->tree, above, salt, of_page);
        if (known.id >= 0) {
            hold_page(kv, known);
            let_page_go(kv, own);
            seq->pages[i] = known;
        } else {
            gm_page_pool_pin(kv->pages, own);
            gm_prefix_tree_insert(kv->tree, own, above, salt, of_page);
            kv->totals.pages_shared++;
        }
    }
}

/* The slot for a new snapshot of `page`: free, or taken from another. */
static gm_status slot_for_snapshot(gm_kv *kv, gm_page page, gm_snapshot_kind kind, gm_slot *slot)
{
    if (gm_state_pool_free(kv->slots) == 0) {
        gm_page victim = kind == GM_SNAPSHOT_STAYS
                             ? gm_prefix_tree_snapshot_victim(kv->tree, GM_PAGE_NONE)
                             : gm_prefix_tree_lesser_snapshot(kv->tree, page, kind == GM_SNAPSHOT_MOVES);
        if (victim.id < 0) return GM_ECAPACITY;
        evict_snapshot(kv, victim);
    }
    return gm_state_pool_take(kv->slots, slot);
}

bool gm_kv_try_snapshot(gm_kv *kv, gm_kv_seq *seq, int32_t n_tokens, gm_snapshot_kind kind, gm_slot_copy *copy)
{
    if (!kv->tree || !has_state(kv)) return false;
    int32_t idx = n_tokens / kv->page_tokens - 1;
    GM_ASSERT(n_tokens % kv->page_tokens == 0 && idx >= 0 && idx < seq->n_shared && seq->slot.id >= 0);
    gm_page page = seq->pages[idx];
    if (gm_prefix_tree_snapshot(kv->tree, page).id >= 0) {
        gm_prefix_tree_use_snapshot(kv->tree, page);
        return false;
    }
    gm_slot slot = GM_SLOT_NONE;
    bool moving = kind == GM_SNAPSHOT_MOVES;
    gm_page last = moving && seq->moving_idx >= 0 ? seq->pages[seq->moving_idx] : GM_PAGE_NONE;
    if (last.id >= 0 && gm_prefix_tree_moving(kv->tree, last)) slot = gm_prefix_tree_drop_snapshot(kv->tree, last);
    else if (slot_for_snapshot(kv, page, kind, &slot)) return false;
    gm_prefix_tree_put_snapshot(kv->tree, page, slot, moving);
    kv->totals.snapshots_taken++;
    if (moving) seq->moving_idx = idx;
    *copy = (gm_slot_copy){seq->slot, slot};
    return true;
}

void gm_kv_drop_snapshot(gm_kv *kv, gm_slot slot)
{
    gm_page page = kv->tree ? gm_prefix_tree_snapshot_page(kv->tree, slot) : GM_PAGE_NONE;
    if (page.id >= 0) (void)forget_snapshot(kv, page);
}

bool gm_kv_reset_prefix(gm_kv *kv)
{
    if (gm_kv_pages_free(kv) < gm_page_pool_total(kv->pages)) return false;
    while (kv->tree && gm_prefix_tree_nodes(kv->tree) > 0) forget_page(kv);
    return true;
}

bool gm_kv_prefix_caching(const gm_kv *kv)
{
    return kv->tree != NULL;
}

gm_kv_cached gm_kv_cached_get(const gm_kv *kv)
{
    gm_kv_cached c = kv->totals;
    if (!kv->tree) return c;
    c.pages = gm_prefix_tree_evictable(kv->tree);
    c.snapshots = gm_prefix_tree_snapshots(kv->tree);
    return c;
}

/* ---- counts ---- */

int32_t gm_kv_pages_for(const gm_kv *kv, int32_t n_tokens)
{
    return n_tokens > 0 ? kv->seq_pages + pages_for(n_tokens, kv->page_tokens) : 0;
}

int32_t gm_kv_page_tokens(const gm_kv *kv)
{
    return kv->page_tokens;
}

int32_t gm_kv_pages_total(const gm_kv *kv)
{
    return gm_page_pool_total(kv->pages);
}

int32_t gm_kv_pages_free(const gm_kv *kv)
{
    return gm_page_pool_free(kv->pages) + (kv->tree ? gm_prefix_tree_evictable(kv->tree) : 0);
}

int32_t gm_kv_slots_total(const gm_kv *kv)
{
    return gm_state_pool_total(kv->slots);
}

int32_t gm_kv_slots_free(const gm_kv *kv)
{
    return gm_state_pool_free(kv->slots) + (kv->tree ? gm_prefix_tree_snapshots(kv->tree) : 0);
}

/* ---- proof ---- */

static gm_status count_seq(gm_kv *kv, const gm_kv_seq *seq, int32_t *n_slots_held, gm_error *err)
{
    if (!seq->listed || seq->n_pages > seq->cap_pages || seq->n_shared > seq->n_pages)
        return gm_fail(err, GM_EINTERNAL, "a broken sequence");
    for (int32_t i = 0; i < seq->n_pages; i++) {
        int32_t id = seq->pages[i].id;
        if (id < 0 || id >= gm_page_pool_total(kv->pages))
            return gm_fail(err, GM_EINTERNAL, "page table entry %d: page %d", i, id);
        kv->seen[id]++;
        if ((i < seq->n_shared) != (kv->tree && gm_prefix_tree_has(kv->tree, seq->pages[i])))
            return gm_fail(err, GM_EINTERNAL, "page table entry %d of %d shared: page %d", i, seq->n_shared, id);
    }
    if (seq->slot.id < 0) return GM_OK;
    if (!gm_state_pool_taken(kv->slots, seq->slot))
        return gm_fail(err, GM_EINTERNAL, "slot %d: held, but free", seq->slot.id);
    if (kv->tree && gm_prefix_tree_snapshot_page(kv->tree, seq->slot).id >= 0)
        return gm_fail(err, GM_EINTERNAL, "slot %d: held, and a snapshot", seq->slot.id);
    (*n_slots_held)++;
    for (const gm_kv_seq *o = seq->next; o; o = o->next)
        if (o->slot.id == seq->slot.id)
            return gm_fail(err, GM_EINTERNAL, "slot %d: held twice", seq->slot.id);
    return GM_OK;
}

/* Of one page: what the pool, the tables and the tree say about it. */
static gm_status check_page(const gm_kv *kv, gm_page page, gm_error *err)
{
    int32_t refs = gm_page_pool_refs(kv->pages, page), held = kv->seen[page.id];
    bool cached = kv->tree && gm_prefix_tree_has(kv->tree, page);
    if (refs != held + cached)
        return gm_fail(err, GM_EINTERNAL, "page %d: count %d, held %d times%s", page.id, refs, held,
                       cached ? ", cached" : "");
    if (cached && gm_prefix_tree_held(kv->tree, page) != (held > 0))
        return gm_fail(err, GM_EINTERNAL, "page %d: held %d times, and the tree does not think so", page.id, held);
    return GM_OK;
}

gm_status gm_kv_check(gm_kv *kv, gm_error *err)
{
    gm_status st = gm_page_pool_check(kv->pages, err);
    if (!st) st = gm_state_pool_check(kv->slots, err);
    if (!st && kv->tree) st = gm_prefix_tree_check(kv->tree, err);
    if (st) return st;

    int32_t n_pages = gm_page_pool_total(kv->pages), n_slots_held = 0;
    memset(kv->seen, 0, (size_t)n_pages * sizeof *kv->seen);
    for (const gm_kv_seq *s = kv->holders; s; s = s->next) {
        st = count_seq(kv, s, &n_slots_held, err);
        if (st) return st;
    }
    for (int32_t id = 0; id < n_pages; id++)
        if ((st = check_page(kv, (gm_page){id}, err))) return st;
    for (int32_t i = 0; kv->tree && i < gm_state_pool_total(kv->slots); i++) {
        bool snapshot = gm_prefix_tree_snapshot_page(kv->tree, (gm_slot){i}).id >= 0;
        n_slots_held += snapshot;
        if (snapshot && !gm_state_pool_taken(kv->slots, (gm_slot){i}))
            return gm_fail(err, GM_EINTERNAL, "slot %d: a snapshot, but free", i);
    }
    int32_t n_taken = gm_state_pool_total(kv->slots) - gm_state_pool_free(kv->slots);
    if (n_taken != n_slots_held)
        return gm_fail(err, GM_EINTERNAL, "slots: %d taken, %d held", n_taken, n_slots_held);
    return GM_OK;
}
