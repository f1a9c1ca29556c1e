/* Page ids with reference counts and a free list: integers only, the memory behind a page is the device's.
 *
 * A page is free exactly while its count is zero. The free list is taken from at the head; a page that comes
 * back goes to the head too, because nothing in it is worth keeping. The list is linked both ways, so that a
 * free page can be pinned out of its middle: what it holds stays valid until take() hands it out. */
#ifndef GM_KV_PAGE_POOL_H
#define GM_KV_PAGE_POOL_H

#include "base/status.h"
#include "kv/kv_types.h"

typedef struct gm_page_pool gm_page_pool;

gm_status gm_page_pool_create(gm_page_pool **out, int32_t n_pages, gm_error *err);
void gm_page_pool_destroy(gm_page_pool *p);

/* Take n pages, or none, each with a count of one. A caller never holds a part of what it asked for, so on
 * GM_ECAPACITY there is nothing to give back. That answer is ordinary: the scheduler then preempts. */
gm_status gm_page_pool_take(gm_page_pool *p, int32_t n, gm_page *pages);

/* One holder more. A free page is revived: it leaves the free list with its content. */
void gm_page_pool_pin(gm_page_pool *p, gm_page page);
/* One holder less; the last one frees the page. */
void gm_page_pool_unpin(gm_page_pool *p, gm_page page);

int32_t gm_page_pool_total(const gm_page_pool *p);
int32_t gm_page_pool_free(const gm_page_pool *p);
int32_t gm_page_pool_refs(const gm_page_pool *p, gm_page page);

/* GM_EINTERNAL with the reason unless the free list holds each page of count zero once, and no other. */
gm_status gm_page_pool_check(const gm_page_pool *p, gm_error *err);

#endif
