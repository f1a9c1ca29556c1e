/* Cache space of sequences: a page table that grows with the sequence, and one state slot while it runs.
 *
 * Integers only. The two pools have sizes of their own and are never traded against each other. Not
 * thread-safe: one owner (the engine thread, the simulator) calls everything except gm_kv_seq_init() and
 * _fini(). */
#ifndef GM_KV_KV_H
#define GM_KV_KV_H

#include "kv/page_pool.h"
#include "kv/state_pool.h"

typedef struct gm_kv gm_kv;

typedef struct gm_kv_params {
    int32_t page_tokens; /* tokens a page has room for */
    int32_t n_pages;
    int32_t n_slots; /* 0: the model keeps no per-sequence state */
    /* Pages that a sequence holds beside those of its tokens, from its first token on: for planning engines that keep
     * recurrent state in pages of the same pool. The table passed to gm_kv_seq_init() must have room for them. */
    int32_t seq_pages;
} gm_kv_params;

/* What one sequence holds. Read it freely; only the calls below change it. */
typedef struct gm_kv_seq {
    gm_page *pages; /* [n_pages]; entry i holds tokens i * page_tokens .. */
    int32_t n_pages, cap_pages;
    gm_slot slot;                  /* GM_SLOT_NONE unless it runs on a model with state */
    struct gm_kv_seq *prev, *next; /* the sequences that hold something */
    bool listed;
} gm_kv_seq;

gm_status gm_kv_create(gm_kv **out, const gm_kv_params *params, gm_error *err);
void gm_kv_destroy(gm_kv *kv);

/* Room for the table of a sequence of at most tokens_max tokens, so no later call allocates. Any thread. */
gm_status gm_kv_seq_init(gm_kv_seq *seq, int32_t page_tokens, int32_t tokens_max, gm_error *err);
/* The sequence must hold nothing. Accepts a zeroed one. */
void gm_kv_seq_fini(gm_kv_seq *seq);

/* Pages for a sequence of n_tokens, all that are missing or none (GM_ECAPACITY). */
gm_status gm_kv_grow(gm_kv *kv, gm_kv_seq *seq, int32_t n_tokens);
/* The state slot, unless it has one or the model keeps no state. GM_ECAPACITY when all are out. */
gm_status gm_kv_take_slot(gm_kv *kv, gm_kv_seq *seq);
/* Give everything back, the end of the sequence first: it is what will be reused first. */
void gm_kv_release(gm_kv *kv, gm_kv_seq *seq);

int32_t gm_kv_pages_for(const gm_kv *kv, int32_t n_tokens);
int32_t gm_kv_page_tokens(const gm_kv *kv);
int32_t gm_kv_pages_total(const gm_kv *kv);
int32_t gm_kv_pages_free(const gm_kv *kv);
int32_t gm_kv_slots_total(const gm_kv *kv);
int32_t gm_kv_slots_free(const gm_kv *kv);

/* Proves that every page is free or held, that its count equals the table entries that name it, and that
 * every slot is free or held by exactly one sequence. GM_EINTERNAL says what is wrong. Allocates nothing. */
gm_status gm_kv_check(gm_kv *kv, gm_error *err);

#endif
