#include "kv/kv.h"

#include "base/mem.h"

#include <string.h>

struct gm_kv {
    gm_page_pool *pages;
    gm_state_pool *slots;
    int32_t page_tokens, seq_pages;
    gm_kv_seq *holders; /* every sequence that holds a page or a slot */
    int32_t *seen;      /* [n_pages] scratch of gm_kv_check() */
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
    *seq = (gm_kv_seq){.slot = GM_SLOT_NONE, .cap_pages = cap};
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

gm_status gm_kv_grow(gm_kv *kv, gm_kv_seq *seq, int32_t n_tokens)
{
    int32_t need = gm_kv_pages_for(kv, n_tokens);
    GM_ASSERT(need <= seq->cap_pages);
    if (need <= seq->n_pages) return GM_OK;
    gm_status st = gm_page_pool_take(kv->pages, need - seq->n_pages, seq->pages + seq->n_pages);
    if (st) return st;
    seq->n_pages = need;
    list(kv, seq);
    return GM_OK;
}

gm_status gm_kv_take_slot(gm_kv *kv, gm_kv_seq *seq)
{
    if (seq->slot.id >= 0 || gm_state_pool_total(kv->slots) == 0) return GM_OK;
    gm_status st = gm_state_pool_take(kv->slots, &seq->slot);
    if (st) return st;
    list(kv, seq);
    return GM_OK;
}

void gm_kv_release(gm_kv *kv, gm_kv_seq *seq)
{
    for (int32_t i = seq->n_pages - 1; i >= 0; i--) gm_page_pool_unpin(kv->pages, seq->pages[i]);
    seq->n_pages = 0;
    if (seq->slot.id >= 0) gm_state_pool_give(kv->slots, seq->slot);
    seq->slot = GM_SLOT_NONE;
    unlist(kv, seq);
}

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
    return gm_page_pool_free(kv->pages);
}

int32_t gm_kv_slots_total(const gm_kv *kv)
{
    return gm_state_pool_total(kv->slots);
}

int32_t gm_kv_slots_free(const gm_kv *kv)
{
    return gm_state_pool_free(kv->slots);
}

/* ---- proof ---- */

static gm_status count_seq(gm_kv *kv, const gm_kv_seq *seq, int32_t *n_slots_held, gm_error *err)
{
    if (!seq->listed || seq->n_pages > seq->cap_pages) return gm_fail(err, GM_EINTERNAL, "a broken sequence");
    for (int32_t i = 0; i < seq->n_pages; i++) {
        int32_t id = seq->pages[i].id;
        if (id < 0 || id >= gm_page_pool_total(kv->pages))
            return gm_fail(err, GM_EINTERNAL, "page table entry %d: page %d", i, id);
        kv->seen[id]++;
    }
    if (seq->slot.id < 0) return GM_OK;
    if (!gm_state_pool_taken(kv->slots, seq->slot))
        return gm_fail(err, GM_EINTERNAL, "slot %d: held, but free", seq->slot.id);
    (*n_slots_held)++;
    for (const gm_kv_seq *o = seq->next; o; o = o->next)
        if (o->slot.id == seq->slot.id)
            return gm_fail(err, GM_EINTERNAL, "slot %d: held twice", seq->slot.id);
    return GM_OK;
}

gm_status gm_kv_check(gm_kv *kv, gm_error *err)
{
    gm_status st = gm_page_pool_check(kv->pages, err);
    if (!st) st = gm_state_pool_check(kv->slots, err);
    if (st) return st;

    int32_t n_pages = gm_page_pool_total(kv->pages), n_slots_held = 0;
    memset(kv->seen, 0, (size_t)n_pages * sizeof *kv->seen);
    for (const gm_kv_seq *s = kv->holders; s; s = s->next) {
        st = count_seq(kv, s, &n_slots_held, err);
        if (st) return st;
    }
    for (int32_t id = 0; id < n_pages; id++) {
        int32_t refs = gm_page_pool_refs(kv->pages, (gm_page){id});
        if (refs != kv->seen[id])
            return gm_fail(err, GM_EINTERNAL, "page %d: count %d, held %d times", id, refs, kv->seen[id]);
    }
    int32_t n_taken = gm_state_pool_total(kv->slots) - gm_state_pool_free(kv->slots);
    if (n_taken != n_slots_held)
        return gm_fail(err, GM_EINTERNAL, "slots: %d taken, %d held", n_taken, n_slots_held);
    return GM_OK;
}
