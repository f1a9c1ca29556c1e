/* The units of cache space, each a type of its own: most published long-context faults of servers of these models
 * are one of them taken for another. A value below zero means "none". */
#ifndef GM_KV_KV_TYPES_H
#define GM_KV_KV_TYPES_H

#include <stdint.h>

typedef struct gm_page {
    int32_t id; /* which page of the pool: room for page_tokens tokens of every MLA layer */
} gm_page;

typedef struct gm_slot {
    int32_t id; /* which slot of the pool: recurrent state of one running sequence, or a snapshot of one */
} gm_slot;

typedef struct gm_pos {
    int32_t tok; /* token position within its sequence, from 0 */
} gm_pos;

typedef struct gm_pool_pos {
    int32_t pool; /* position of a pooled index key within its sequence: covers tokens pool*k .. pool*k+k-1 */
} gm_pool_pos;

typedef struct gm_chunk_len {
    int32_t tok; /* number of tokens that one request has in one step */
} gm_chunk_len;

/* The state in `from` is to be copied into `to`. */
typedef struct gm_slot_copy {
    gm_slot from, to;
} gm_slot_copy;

#define GM_PAGE_NONE ((gm_page){-1})
#define GM_SLOT_NONE ((gm_slot){-1})

#endif
