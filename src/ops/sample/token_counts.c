#include "ops/sample/token_counts.h"

/* At most half full, so that a probe stays short. */
static uint32_t table_len(int32_t n_distinct_max)
{
    uint32_t len = 8;
    while (len < 2 * (uint32_t)n_distinct_max) len *= 2;
    return len;
}

size_t gm_token_counts_size(int32_t n_distinct_max)
{
    return (size_t)n_distinct_max * sizeof(gm_token_count) + table_len(n_distinct_max) * sizeof(int32_t);
}

void gm_token_counts_init(gm_token_counts *c, void *memory, int32_t n_distinct_max)
{
    gm_token_count *entries = memory;
    *c = (gm_token_counts){.entries = entries,
                           .cap = n_distinct_max,
                           .table = (int32_t *)(void *)(entries + n_distinct_max),
                           .mask = table_len(n_distinct_max) - 1};
}

void gm_token_counts_add(gm_token_counts *c, int32_t id, bool output)
{
    uint32_t i = (uint32_t)id * 0x9E3779B1u & c->mask;
    for (; c->table[i]; i = (i + 1) & c->mask) {
        gm_token_count *e = &c->entries[c->table[i] - 1];
        if (e->id != id) continue;
        e->n_output += output;
        return;
    }
    GM_ASSERT(c->n < c->cap);
    c->entries[c->n++] = (gm_token_count){.id = id, .n_output = output};
    c->table[i] = c->n;
}
