/* Cached pages by what they hold: a tree in which a node is one full page and its path from the root is the
 * token ids that led to it. A node has the id of its page, so the tree needs no memory but what it takes at
 * creation.
 *
 * A child is found by a 128-bit hash chained along the path (a salt begins the chain) and is believed only
 * when its parent and its token ids are equal too. A node is *held* while sequences use its page, otherwise
 * *evictable*. Whoever holds a node holds its whole path, so evictable nodes never stand above held ones, and
 * taking away leaves one by one gets all of them.
 *
 * A node may carry a snapshot: a slot with the recurrent state after its last token. Models with state resume
 * only there. A snapshot can be given up without its page.
 *
 * Integers only, no ownership: who holds a page and which slots are free is kept by kv.c. */
#ifndef GM_KV_PREFIX_TREE_H
#define GM_KV_PREFIX_TREE_H

#include <stddef.h>

#include "base/status.h"
#include "kv/kv_types.h"

typedef struct gm_prefix_tree gm_prefix_tree;

/* What begins the chain of hashes: pages of different salts are never the same. All zero: no salt. */
typedef struct gm_prefix_salt {
    uint64_t lo, hi;
} gm_prefix_salt;
gm_prefix_salt gm_prefix_salt_of(const void *bytes, size_t len);

/* n_slots 0: the model keeps no state, every node is a place to resume. */
gm_status gm_prefix_tree_create(gm_prefix_tree **out, int32_t n_pages, int32_t page_tokens, int32_t n_slots,
                                gm_error *err);
void gm_prefix_tree_destroy(gm_prefix_tree *t);

/* The child of `parent` (GM_PAGE_NONE: the root of this salt) with tokens[0..page_tokens), or GM_PAGE_NONE.
 */
gm_page gm_prefix_tree_find(gm_prefix_tree *t, gm_page parent, gm_prefix_salt salt, const int32_t *tokens);
/* Make `page` that child: a held leaf. There must be none yet, and the parent must be held. */
void gm_prefix_tree_insert(gm_prefix_tree *t, gm_page page, gm_page parent, gm_prefix_salt salt,
                           const int32_t *tokens);
bool gm_prefix_tree_has(const gm_prefix_tree *t, gm_page page);

/* The first holder came, the last one left. Hold from the root down, let go from the end up. */
void gm_prefix_tree_hold(gm_prefix_tree *t, gm_page page);
void gm_prefix_tree_let_go(gm_prefix_tree *t, gm_page page);

/* The evictable leaf that is worth least, or GM_PAGE_NONE: first leaves from which nothing can resume, then
 * by how long ago it was let go. */
gm_page gm_prefix_tree_victim(const gm_prefix_tree *t);
/* Take an evictable leaf without a snapshot out of the tree. */
void gm_prefix_tree_remove(gm_prefix_tree *t, gm_page page);

/* ---- snapshots ---- */

gm_slot gm_prefix_tree_snapshot(const gm_prefix_tree *t, gm_page page); /* GM_SLOT_NONE: it has none */
/* moving: it follows a running sequence, which may take it away again (gm_prefix_tree_moving). */
void gm_prefix_tree_put_snapshot(gm_prefix_tree *t, gm_page page, gm_slot slot, bool moving);
gm_slot gm_prefix_tree_drop_snapshot(gm_prefix_tree *t, gm_page page);
gm_page gm_prefix_tree_snapshot_page(const gm_prefix_tree *t, gm_slot slot); /* GM_PAGE_NONE: it is not one */
bool gm_prefix_tree_moving(const gm_prefix_tree *t, gm_page page);
/* It was of use, or somebody else wants it too: as young as a new one, and it stays where it is. */
void gm_prefix_tree_use_snapshot(gm_prefix_tree *t, gm_page page);

/* Which snapshot to give up, or GM_PAGE_NONE where there is none but that of `spare`. All have the same size,
 * so value per byte is the number of tokens that would have to be computed again, which is the distance to
 * the snapshot before it on its path. Age counts in the same unit: a snapshot's rank is that number plus the
 * clock at its last use, the clock being the rank of the last one given up (greedy dual). */
gm_page gm_prefix_tree_snapshot_victim(gm_prefix_tree *t, gm_page spare);
/* The same for a new snapshot of `page`, which must rank higher, so that GM_PAGE_NONE is likely. insist: as
 * high will do, and where it does not the clock moves on by what could not be kept, so that nothing stays for
 * ever. */
gm_page gm_prefix_tree_lesser_snapshot(gm_prefix_tree *t, gm_page page, bool insist);

int32_t gm_prefix_tree_nodes(const gm_prefix_tree *t);
int32_t gm_prefix_tree_evictable(const gm_prefix_tree *t);
int32_t gm_prefix_tree_snapshots(const gm_prefix_tree *t);
bool gm_prefix_tree_held(const gm_prefix_tree *t, gm_page page);

/* GM_EINTERNAL with the reason unless hashes, links, counts, the heap and the snapshots agree. Allocates
 * nothing. */
gm_status gm_prefix_tree_check(gm_prefix_tree *t, gm_error *err);

#endif
