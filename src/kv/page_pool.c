#include "kv/page_pool.h"

#include "base/mem.h"

enum { END = -1 };

typedef struct page_node {
    int32_t refs;
    int32_t prev, next; /* free list; meaningless while refs > 0 */
} page_node;

struct gm_page_pool {
    page_node *nodes;
    int32_t n_pages, n_free;
    int32_t head;
};

static void push_head(gm_page_pool *p, int32_t id)
{
    p->nodes[id].prev = END;
    p->nodes[id].next = p->head;
    if (p->head != END) p->nodes[p->head].prev = id;
    p->head = id;
    p->n_free++;
}

static void unlink_free(gm_page_pool *p, int32_t id)
{
    page_node *n = &p->nodes[id];
    if (n->prev == END) p->head = n->next;
    else p->nodes[n->prev].next = n->next;
    if (n->next != END) p->nodes[n->next].prev = n->prev;
    p->n_free--;
}

gm_status gm_page_pool_create(gm_page_pool **out, int32_t n_pages, gm_error *err)
{
    if (n_pages < 1) return gm_fail(err, GM_EARG, "page pool: %d pages, needs at least 1", n_pages);
    gm_page_pool *p = gm_try_alloc(1, sizeof *p);
    if (!p) return gm_fail(err, GM_ENOMEM, "page pool: no memory");
    p->nodes = gm_try_alloc((size_t)n_pages, sizeof *p->nodes);
    if (!p->nodes) {
        gm_page_pool_destroy(p);
        return gm_fail(err, GM_ENOMEM, "page pool: no memory for %d pages", n_pages);
    }
    p->n_pages = n_pages;
    p->head = END;
    for (int32_t id = n_pages - 1; id >= 0; id--) push_head(p, id);
    *out = p;
    return GM_OK;
}

void gm_page_pool_destroy(gm_page_pool *p)
{
    if (!p) return;
    gm_free(p->nodes);
    gm_free(p);
}

gm_status gm_page_pool_take(gm_page_pool *p, int32_t n, gm_page *pages)
{
    GM_ASSERT(n >= 0);
    if (n > p->n_free) return GM_ECAPACITY;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = p->head;
        unlink_free(p, id);
        p->nodes[id].refs = 1;
        pages[i] = (gm_page){id};
    }
    return GM_OK;
}

static page_node *node_of(const gm_page_pool *p, gm_page page)
{
    GM_ASSERT(page.id >= 0 && page.id < p->n_pages);
    return &p->nodes[page.id];
}

void gm_page_pool_pin(gm_page_pool *p, gm_page page)
{
    page_node *n = node_of(p, page);
    if (n->refs == 0) unlink_free(p, page.id);
    n->refs++;
}

void gm_page_pool_unpin(gm_page_pool *p, gm_page page)
{
    page_node *n = node_of(p, page);
    GM_ASSERT(n->refs > 0);
    if (--n->refs == 0) push_head(p, page.id);
}

int32_t gm_page_pool_total(const gm_page_pool *p)
{
    return p->n_pages;
}

int32_t gm_page_pool_free(const gm_page_pool *p)
{
    return p->n_free;
}

int32_t gm_page_pool_refs(const gm_page_pool *p, gm_page page)
{
    return node_of(p, page)->refs;
}

gm_status gm_page_pool_check(const gm_page_pool *p, gm_error *err)
{
    int32_t n_zero = 0, n_listed = 0;
    for (int32_t id = 0; id < p->n_pages; id++) {
        if (p->nodes[id].refs < 0)
            return gm_fail(err, GM_EINTERNAL, "page %d: count %d", id, p->nodes[id].refs);
        n_zero += p->nodes[id].refs == 0;
    }
    int32_t prev = END;
    for (int32_t id = p->head; id != END; id = p->nodes[id].next) {
        if (++n_listed > p->n_pages) return gm_fail(err, GM_EINTERNAL, "free list: a cycle");
        if (p->nodes[id].refs)
            return gm_fail(err, GM_EINTERNAL, "page %d: free with count %d", id, p->nodes[id].refs);
        if (p->nodes[id].prev != prev) return gm_fail(err, GM_EINTERNAL, "page %d: broken back link", id);
        prev = id;
    }
    if (n_listed != n_zero || n_listed != p->n_free)
        return gm_fail(err, GM_EINTERNAL, "free list: %d listed, %d of count zero, %d counted", n_listed,
                       n_zero, p->n_free);
    return GM_OK;
}
