#include "text/u64_map.h"

#include <string.h>

#include "base/mem.h"

static size_t slot_of(const gm_u64_map *m, uint64_t key)
{
    uint64_t h = key * UINT64_C(0x9E3779B97F4A7C15);
    h ^= h >> 32;
    h *= UINT64_C(0xD6E8FEB86659FD93);
    h ^= h >> 32;
    size_t i = (size_t)h & (m->cap - 1);
    while (m->slots[2 * i + 1] != GM_U64_MAP_NONE && m->slots[2 * i] != key) i = (i + 1) & (m->cap - 1);
    return i;
}

static void resize(gm_u64_map *m, size_t cap)
{
    gm_u64_map old = *m;
    m->cap = cap;
    m->slots = gm_new_array(uint64_t, 2 * cap);
    memset(m->slots, 0xFF, 2 * cap * sizeof *m->slots);
    for (size_t i = 0; i < old.cap; i++) {
        if (old.slots[2 * i + 1] == GM_U64_MAP_NONE) continue;
        size_t to = slot_of(m, old.slots[2 * i]);
        m->slots[2 * to] = old.slots[2 * i];
        m->slots[2 * to + 1] = old.slots[2 * i + 1];
    }
    gm_free(old.slots);
}

uint64_t gm_u64_map_get(const gm_u64_map *m, uint64_t key)
{
    return m->cap ? m->slots[2 * slot_of(m, key) + 1] : GM_U64_MAP_NONE;
}

bool gm_u64_map_put(gm_u64_map *m, uint64_t key, uint64_t value)
{
    if (2 * (m->n + 1) > m->cap) resize(m, m->cap ? 2 * m->cap : 16);
    size_t i = slot_of(m, key);
    bool fresh = m->slots[2 * i + 1] == GM_U64_MAP_NONE;
    m->slots[2 * i] = key;
    m->slots[2 * i + 1] = value;
    if (fresh) m->n++;
    return fresh;
}

void gm_u64_map_fini(gm_u64_map *m)
{
    gm_free(m->slots);
    *m = (gm_u64_map){0};
}
