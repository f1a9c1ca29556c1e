#include "sched/request.h"

gm_status gm_request_init(gm_request *r, int32_t page_tokens, int32_t n_prompt, int32_t n_tokens_max,
                          gm_error *err)
{
    GM_ASSERT(n_prompt >= 1 && n_tokens_max > n_prompt);
    *r = (gm_request){.n_prompt = n_prompt,
                      .n_tokens_max = n_tokens_max,
                      .n_tokens = n_prompt,
                      .rows_next = {1},
                      .heap_idx = -1,
                      .running_idx = -1};
    /* The last token is never put into the cache: nothing follows it. */
    return gm_kv_seq_init(&r->seq, page_tokens, n_tokens_max - 1, err);
}

void gm_request_fini(gm_request *r)
{
    GM_ASSERT(r->state == GM_REQUEST_NEW || r->state == GM_REQUEST_DONE);
    gm_kv_seq_fini(&r->seq);
}

/* Tokens whose row is wanted: from rows_next - 1 up to the last but one of the prompt. */
static int32_t overlap(const gm_request *r, int32_t begin, int32_t end)
{
    int32_t lo = r->rows_next.tok - 1 > begin ? r->rows_next.tok - 1 : begin;
    int32_t hi = r->n_prompt - 1 < end ? r->n_prompt - 1 : end;
    return hi > lo ? hi - lo : 0;
}

int32_t gm_request_rows(const gm_request *r, int32_t begin, int32_t n)
{
    return r->prompt_rows ? overlap(r, begin, begin + n) : 0;
}

int32_t gm_request_clip_rows(const gm_request *r, int32_t begin, int32_t n, int32_t rows_max)
{
    int32_t rows = gm_request_rows(r, begin, n);
    if (rows <= rows_max) return n;
    int32_t first = r->rows_next.tok - 1 > begin ? r->rows_next.tok - 1 : begin;
    return first - begin + rows_max; /* may be 0 */
}
