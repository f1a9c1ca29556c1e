#include "ops/index_append/index_append_internal.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_index_append_ref, GM_X86(gm_index_append_avx2), GM_X86(gm_index_append_avx512)};

/* Afterwards the tail is the same as if the tokens had come one by one: the last `pool` of them, each in its row. It
 * is written when all keys are, for they read the tail of the steps before. */
static void write_tails(void *ctx, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_index_append_args *a = ctx;
    int32_t pool = a->cache.pool, d = a->cache.d;
    for (int64_t i = begin; i < end; i++) {
        const gm_slice *s = &a->rows->slices[i];
        uint8_t *tail = a->tail + s->slot.id * a->slot_stride;
        int32_t first = s->n.tok > pool ? s->n.tok - pool : 0;
        for (int32_t t = first; t < s->n.tok; t++) {
            int64_t r = s->token_begin + t;
            int64_t to = (int64_t)(a->rows->pos[r].tok % pool) * 2 * d;
            for (int32_t c = 0; c < d; c++) {
                gm_index_tail_store(tail, to + c, a->k[r * a->ldk + c], a->bf16);
                gm_index_tail_store(tail, to + d + c, a->e[r * a->lde + c], a->bf16);
            }
        }
    }
}

void gm_index_append(const gm_index_append_args *a)
{
    const gm_index_cache *c = &a->cache;
    GM_ASSERT(c->d > 0 && c->d <= GM_INDEX_D_MAX && c->pool >= 1 && c->pool <= GM_INDEX_POOL_MAX);
    GM_ASSERT(c->page_tokens % c->pool == 0 && c->key_bytes >= gm_index_key_bytes(c->dtype, c->d));
    GM_ASSERT(a->e ? a->ape && a->tail : c->pool == 1);
    gm_op_run(GM_OP_index_append, a->dev, VARIANTS, a, a->rows->n_rows, gm_grain((int64_t)c->d * 16));
    if (!a->tail || !a->e) return;
    for (int32_t i = 0; i < a->rows->n_slices; i++) GM_ASSERT(a->rows->slices[i].slot.id >= 0);
    gm_device_parallel(a->dev, a->rows->n_slices, gm_grain((int64_t)c->d * c->pool * 2), write_tails,
                       (void *)(uintptr_t)a);
}
