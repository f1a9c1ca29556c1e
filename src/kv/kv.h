/* Cache space of sequences: a page table that grows with the sequence, and one state slot while it runs. With
 * prefix caching, what a sequence leaves behind stays known by its content until the space is needed, and another
 * sequence that begins with the same tokens goes on from there.
 *
 * A page is free, held by sequences, or evictable (cached and held by none). A slot is free, a running sequence's, or
 * a snapshot. "Free" in the counts below includes what can be evicted.
 *
 * Integers only. The two pools have sizes of their own and are never traded against each other. Not
 * thread-safe: one owner (the engine thread, the simulator) calls everything except gm_kv_seq_init() and
 * _fini(). */
#ifndef GM_KV_KV_H
#define GM_KV_KV_H

#include "kv/page_pool.h"
#include "kv/prefix_tree.h"
#include "kv/state_pool.h"

typedef struct gm_kv gm_kv;

typedef struct gm_kv_params {
    int32_t page_tokens; /* tokens a page has room for */
    int32_t n_pages;
    int32_t n_slots; /* of running sequences and snapshots together; 0: the model keeps no per-sequence state */
    bool prefix_caching;
    /* Pages that a sequence holds beside those of its tokens, from its first token on: for planning engines that keep
     * recurrent state in pages of the same pool (0 with prefix_caching). The table passed to gm_kv_seq_init() must have
     * room for them. */
    int32_t seq_pages;
} gm_kv_params;

/* What one sequence holds. Read it freely; only the calls below change it. */
typedef struct gm_kv_seq {
    gm_page *pages; /* [n_pages]; entry i holds tokens i * page_tokens .. */
    int32_t n_pages, cap_pages;
    gm_slot slot;                  /* GM_SLOT_NONE unless it runs on a model with state */
    int32_t n_shared;              /* pages[0 .. n_shared) are known by their content */
    gm_slot load_from;             /* snapshot whose state the slot must get before the first step; GM_SLOT_NONE */
    int32_t moving_idx;            /* entry whose snapshot follows this sequence; -1: none */
    struct gm_kv_seq *prev, *next; /* the sequences that hold something */
    bool listed;
} gm_kv_seq;

gm_status gm_kv_create(gm_kv **out, const gm_kv_params *params, gm_error *err);
void gm_kv_destroy(gm_kv *kv);

/* Room for the table of a sequence of at most tokens_max tokens, so no later call allocates. Any thread. */
gm_status gm_kv_seq_init(gm_kv_seq *seq, int32_t page_tokens, int32_t tokens_max, gm_error *err);
/* The sequence must hold nothing. Accepts a zeroed one. */
void gm_kv_seq_fini(gm_kv_seq *seq);

/* Pages for a sequence of n_tokens, all that are missing or none (GM_ECAPACITY). Evicts what it needs to. */
gm_status gm_kv_grow(gm_kv *kv, gm_kv_seq *seq, int32_t n_tokens);
/* The state slot, unless it has one or the model keeps no state. GM_ECAPACITY when all are out. Gives up a snapshot
 * where no slot is free; the one that the sequence resumes from last, and then that slot itself is the answer. */
gm_status gm_kv_take_slot(gm_kv *kv, gm_kv_seq *seq);
/* False, or the copy that brings the sequence's slot to where it resumes, once. Copies are carried out in the order in
 * which they were handed out and before anything writes to the slots: the snapshot may be given up by then. */
bool gm_kv_take_load(gm_kv_seq *seq, gm_slot_copy *copy);
/* Give everything back, the end of the sequence first: it is what will be reused first. */
void gm_kv_release(gm_kv *kv, gm_kv_seq *seq);

/* ---- prefix caching; without it resume finds nothing and the others do nothing ---- */

/* Let a sequence that holds nothing begin with the longest cached beginning of tokens[0 .. n_max) from which it can go
 * on, and hold its pages. Returns the number of tokens, whole pages. *n_matched: tokens whose pages are there, whether
 * or not the state is. The slot is taken by gm_kv_take_slot() as usual. */
int32_t gm_kv_resume(gm_kv *kv, gm_kv_seq *seq, gm_prefix_salt salt, const int32_t *tokens, int32_t n_max,
                     int32_t *n_matched);
/* tokens[0 .. n_computed) of the sequence are in its pages for good: make its full pages known. Where the same content
 * is known already, the sequence takes that page and gives its own back, so that a prefix is stored once. */
void gm_kv_share(gm_kv *kv, gm_kv_seq *seq, gm_prefix_salt salt, const int32_t *tokens, int32_t n_computed);
/* Why a state is kept, which decides what may be given up for it. */
typedef enum gm_snapshot_kind {
    GM_SNAPSHOT_STAYS,  /* somebody will resume here */
    GM_SNAPSHOT_MOVES,  /* the end of a turn that goes on: one snapshot a sequence, which moves along */
    GM_SNAPSHOT_REGULAR /* on the chance that others part here: takes nothing that is worth as much */
} gm_snapshot_kind;
/* Keep the state after n_tokens, which is what the sequence's slot holds now; the pages are shared. False where it is
 * kept already or not worth it. Otherwise *copy is to be carried out before the next step, or the snapshot dropped. */
bool gm_kv_try_snapshot(gm_kv *kv, gm_kv_seq *seq, int32_t n_tokens, gm_snapshot_kind kind, gm_slot_copy *copy);
void gm_kv_drop_snapshot(gm_kv *kv, gm_slot slot);
/* Forget all content. False, with nothing changed, while a sequence holds a page. */
bool gm_kv_reset_prefix(gm_kv *kv);
bool gm_kv_prefix_caching(const gm_kv *kv);

typedef struct gm_kv_cached {
    int32_t pages, snapshots; /* cached now and held by nobody; snapshots in all */
    int64_t pages_shared, pages_evicted, snapshots_taken, snapshots_evicted; /* so far */
} gm_kv_cached;
gm_kv_cached gm_kv_cached_get(const gm_kv *kv);

/* ---- counts ---- */

int32_t gm_kv_pages_for(const gm_kv *kv, int32_t n_tokens);
int32_t gm_kv_page_tokens(const gm_kv *kv);
int32_t gm_kv_pages_total(const gm_kv *kv);
int32_t gm_kv_pages_free(const gm_kv *kv);
int32_t gm_kv_slots_total(const gm_kv *kv);
int32_t gm_kv_slots_free(const gm_kv *kv);

/* Proves that every page is free, held or evictable and only one of these, that its count equals the table entries that
 * name it, and that every slot is free, held by exactly one sequence or a snapshot. GM_EINTERNAL says what is wrong.
 * Allocates nothing. */
gm_status gm_kv_check(gm_kv *kv, gm_error *err);

#endif
