#include "sched/batch.h"

#include "base/mem.h"

#include <string.h>

gm_status gm_step_init(gm_step *s, int32_t n_items_max, gm_error *err)
{
    *s = (gm_step){.cap = n_items_max};
    s->items = gm_try_alloc((size_t)n_items_max, sizeof *s->items);
    s->loads = gm_try_alloc((size_t)n_items_max, sizeof *s->loads);
    s->saves = gm_try_alloc((size_t)n_items_max, sizeof *s->saves);
    if (s->items && s->loads && s->saves) return GM_OK;
    gm_step_fini(s);
    return gm_fail(err, GM_ENOMEM, "step: no memory for %d items", n_items_max);
}

void gm_step_fini(gm_step *s)
{
    gm_free(s->items);
    gm_free(s->loads);
    gm_free(s->saves);
    *s = (gm_step){0};
}

void gm_step_clear(gm_step *s)
{
    *s = (gm_step){.items = s->items, .loads = s->loads, .saves = s->saves, .cap = s->cap};
}

void gm_step_push(gm_step *s, gm_request *r, int32_t n)
{
    GM_ASSERT(s->n_items < s->cap && n >= 1);
    s->items[s->n_items++] = (gm_step_item){.request = r, .begin = {r->computed}, .n = {n}};
    s->n_tokens += n;
    s->n_rows += gm_request_rows(r, r->computed, n);
}

bool gm_step_drop(gm_step *s, const gm_request *r)
{
    for (int32_t i = 0; i < s->n_items; i++) {
        gm_step_item *it = &s->items[i];
        if (it->request != r) continue;
        s->n_tokens -= it->n.tok;
        s->n_rows -= gm_request_rows(r, it->begin.tok, it->n.tok);
        memmove(it, it + 1, (size_t)(s->n_items - i - 1) * sizeof *it);
        s->n_items--;
        return true;
    }
    return false;
}
