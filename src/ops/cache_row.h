/* Where a row of the cache lies. Offsets are 64-bit; the page must be of the pool (asserted, for an address from a
 * wrong page would be another sequence's memory). */
#ifndef GM_OPS_CACHE_ROW_H
#define GM_OPS_CACHE_ROW_H

#include "base/status.h"
#include "ops/slice.h"

static inline int64_t gm_latent_offset(const gm_latent_cache *c, const gm_slice *s, gm_pos p)
{
    int32_t i = p.tok / c->page_tokens;
    GM_ASSERT(p.tok >= 0 && i < s->n_pages);
    int32_t page = s->pages[i].id;
    GM_ASSERT(page >= 0 && page < c->n_pages);
    return ((int64_t)page * c->page_tokens + p.tok % c->page_tokens) * c->row_bytes;
}

static inline uint8_t *gm_latent_row(const gm_latent_cache *c, const gm_slice *s, gm_pos p)
{
    return c->base + gm_latent_offset(c, s, p);
}

static inline int64_t gm_index_offset(const gm_index_cache *c, const gm_slice *s, gm_pool_pos q)
{
    int32_t per_page = c->page_tokens / c->pool;
    int32_t i = q.pool / per_page;
    GM_ASSERT(q.pool >= 0 && i < s->n_pages);
    int32_t page = s->pages[i].id;
    GM_ASSERT(page >= 0 && page < c->n_pages);
    return ((int64_t)page * per_page + q.pool % per_page) * c->key_bytes;
}

static inline uint8_t *gm_index_key(const gm_index_cache *c, const gm_slice *s, gm_pool_pos q)
{
    return c->base + gm_index_offset(c, s, q);
}

/* Complete pools that the token at position p sees. Positions reach 2^31 - 1, so the sum is taken in 64 bits. */
static inline int32_t gm_pools_visible(gm_pos p, int32_t pool)
{
    return (int32_t)(((int64_t)p.tok + 1) / pool);
}

#endif
