#include "sched/repeat.h"

/* Pages missing when each request of the step has k tokens more in the cache. */
static int64_t pages_missing(const gm_kv *kv, const gm_step *step, int32_t k)
{
    int64_t n = 0;
    for (int32_t i = 0; i < step->n_items; i++) {
        const gm_request *r = step->items[i].request;
        n += gm_kv_pages_for(kv, r->computed + k) - r->seq.n_pages;
    }
    return n;
}

int32_t gm_sched_repeats(const gm_sched *s, const gm_kv *kv, const gm_step *step)
{
    int32_t most = INT32_MAX;
    if (step->n_preempted || step->stuck || step->n_items != gm_sched_running(s)) return 0;
    for (int32_t i = 0; i < step->n_items; i++) {
        const gm_step_item *it = &step->items[i];
        const gm_request *r = it->request;
        /* begin 0: admitted in this step, so the next one waiting may be admitted in the next */
        if (it->n.tok != 1 || it->begin.tok == 0 || !it->samples || r->prompt_rows) return 0;
        int32_t left = r->n_tokens_max - r->n_tokens - 1; /* the step that ends it is left to the scheduler */
        if (left < most) most = left;
    }
    if (step->n_items == 0 || most <= 0)
        return step->n_items == 0 && gm_sched_waiting(s) == 0 ? INT32_MAX : 0;
    int64_t free = gm_kv_pages_free(kv);
    if (pages_missing(kv, step, most) <= free) return most;
    int32_t fits = 0; /* fits..most: the last that fits lies in between */
    while (most - fits > 1) {
        int32_t mid = fits + (most - fits) / 2;
        if (pages_missing(kv, step, mid) <= free) fits = mid;
        else most = mid;
    }
    return fits;
}

void gm_sched_repeat(gm_kv *kv, const gm_step *step, int32_t k)
{
    for (int32_t i = 0; i < step->n_items; i++) {
        gm_request *r = step->items[i].request;
        gm_status st = gm_kv_grow(kv, &r->seq, r->computed + k);
        GM_ASSERT(st == GM_OK);
        r->computed += k;
        r->n_tokens += k;
    }
}
