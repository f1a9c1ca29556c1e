#include "ops/variant.h"

#include <stdatomic.h>

static const char *const NAMES[GM_N_OPS] = {
#define X(name) #name,
    GM_OP_LIST(X)
#undef X
};

static _Atomic int64_t counts[GM_N_OPS][GM_N_ISA];

const char *gm_op_name(gm_op op)
{
    GM_ASSERT(op < GM_N_OPS);
    return NAMES[op];
}

int64_t gm_variant_count(gm_op op, gm_isa isa)
{
    return atomic_load_explicit(&counts[op][isa], memory_order_relaxed);
}

void gm_variant_note(gm_op op, gm_isa isa)
{
    atomic_fetch_add_explicit(&counts[op][isa], 1, memory_order_relaxed);
}

gm_isa gm_variant_pick(gm_op op, const gm_device *dev, gm_items_fn *const table[GM_N_ISA])
{
    gm_isa isa = gm_device_isa(dev);
    while (!table[isa]) isa--; /* the reference is always there */
    gm_variant_note(op, isa);
    return isa;
}

typedef struct items_job {
    gm_items_fn *fn;
    const void *args;
} items_job;

static void run_items(void *ctx, int64_t begin, int64_t end, int worker)
{
    const items_job *j = ctx;
    j->fn(j->args, begin, end, worker);
}

void gm_items_run(gm_device *dev, gm_items_fn *fn, const void *args, int64_t n, int64_t grain)
{
    items_job j = {fn, args};
    gm_device_parallel(dev, n, grain, run_items, &j);
}

void gm_op_run(gm_op op, gm_device *dev, gm_items_fn *const table[GM_N_ISA], const void *args, int64_t n,
               int64_t grain)
{
    gm_isa isa = gm_variant_pick(op, dev, table);
    gm_items_run(dev, table[isa], args, n, grain);
}
