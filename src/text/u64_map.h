/* A hash map from 64-bit keys to 64-bit values: open addressing, grows by doubling, no removal.
 * Zero-initialise it. */
#ifndef GM_TEXT_U64_MAP_H
#define GM_TEXT_U64_MAP_H

#include "base/status.h"

typedef struct gm_u64_map {
    uint64_t *slots; /* key, value; a free slot has value ~0 */
    size_t n, cap;   /* cap: a power of two */
} gm_u64_map;

#define GM_U64_MAP_NONE UINT64_MAX

/* The value of key, GM_U64_MAP_NONE where it has none. */
uint64_t gm_u64_map_get(const gm_u64_map *m, uint64_t key);
/* Set key's value (not GM_U64_MAP_NONE). True: the key is new. */
bool gm_u64_map_put(gm_u64_map *m, uint64_t key, uint64_t value);
void gm_u64_map_fini(gm_u64_map *m);

#endif
