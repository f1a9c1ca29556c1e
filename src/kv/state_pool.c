#include "kv/state_pool.h"

#include "base/mem.h"

struct gm_state_pool {
    int32_t n_slots, n_free;
    int32_t *stack; /* [n_free] free ids; the last given is the first taken: its memory is still warm */
    bool *taken;
};

gm_status gm_state_pool_create(gm_state_pool **out, int32_t n_slots, gm_error *err)
{
    if (n_slots < 0) return gm_fail(err, GM_EARG, "state pool: %d slots", n_slots);
    gm_state_pool *p = gm_try_alloc(1, sizeof *p);
    if (!p) return gm_fail(err, GM_ENOMEM, "state pool: no memory");
    p->stack = gm_try_alloc((size_t)n_slots, sizeof *p->stack);
    p->taken = gm_try_alloc((size_t)n_slots, sizeof *p->taken);
    if (!p->stack || !p->taken) {
        gm_state_pool_destroy(p);
        return gm_fail(err, GM_ENOMEM, "state pool: no memory for %d slots", n_slots);
    }
    p->n_slots = p->n_free = n_slots;
    for (int32_t i = 0; i < n_slots; i++) p->stack[i] = n_slots - 1 - i;
    *out = p;
    return GM_OK;
}

void gm_state_pool_destroy(gm_state_pool *p)
{
    if (!p) return;
    gm_free(p->stack);
    gm_free(p->taken);
    gm_free(p);
}

gm_status gm_state_pool_take(gm_state_pool *p, gm_slot *slot)
{
    if (p->n_free == 0) return GM_ECAPACITY;
    int32_t id = p->stack[--p->n_free];
    p->taken[id] = true;
    *slot = (gm_slot){id};
    return GM_OK;
}

void gm_state_pool_give(gm_state_pool *p, gm_slot slot)
{
    GM_ASSERT(gm_state_pool_taken(p, slot));
    p->taken[slot.id] = false;
    p->stack[p->n_free++] = slot.id;
}

int32_t gm_state_pool_total(const gm_state_pool *p)
{
    return p->n_slots;
}

int32_t gm_state_pool_free(const gm_state_pool *p)
{
    return p->n_free;
}

bool gm_state_pool_taken(const gm_state_pool *p, gm_slot slot)
{
    GM_ASSERT(slot.id >= 0 && slot.id < p->n_slots);
    return p->taken[slot.id];
}

gm_status gm_state_pool_check(const gm_state_pool *p, gm_error *err)
{
    int32_t n_taken = 0;
    for (int32_t i = 0; i < p->n_slots; i++) n_taken += p->taken[i];
    if (n_taken + p->n_free != p->n_slots)
        return gm_fail(err, GM_EINTERNAL, "slots: %d taken and %d free of %d", n_taken, p->n_free,
                       p->n_slots);
    for (int32_t i = 0; i < p->n_free; i++) {
        int32_t id = p->stack[i];
        if (id < 0 || id >= p->n_slots || p->taken[id])
            return gm_fail(err, GM_EINTERNAL, "slot %d: on the free list, but not free", id);
        for (int32_t j = 0; j < i; j++)
            if (p->stack[j] == id) return gm_fail(err, GM_EINTERNAL, "slot %d: free twice", id);
    }
    return GM_OK;
}
