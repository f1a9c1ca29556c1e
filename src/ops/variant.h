/* Which variants of an op exist, which one runs, and how often each ran.
 *
 * An op's dispatcher holds a table of its variants, one entry for each gm_isa (NULL where there is none) and runs
 * the best one that the device allows. The choice is counted, so that a test can assert which variant produced a
 * result and a server can report what its step uses. */
#ifndef GM_OPS_VARIANT_H
#define GM_OPS_VARIANT_H

#include "device/device.h"

#define GM_OP_LIST(X)                                                                                        \
    X(embed) X(rmsnorm) X(layernorm) X(gated_norm) X(residual_add) X(rope) X(swiglu) X(linear)               \
    X(mhc_pre) X(mhc_post) X(mhc_mean) X(kda_conv) X(kda_prep) X(kda_scan) X(kv_append)                      \
    X(index_append) X(index_score) X(index_topk) X(mla_attn) X(moe_route) X(moe_experts)

typedef enum gm_op {
#define X(name) GM_OP_##name,
    GM_OP_LIST(X)
#undef X
    GM_N_OPS
} gm_op;

enum { GM_N_ISA = GM_ISA_AVX512 + 1 };

const char *gm_op_name(gm_op op);
/* How many calls of this op the variant has served since the process started. */
int64_t gm_variant_count(gm_op op, gm_isa isa);
/* Called by a dispatcher, once a call. */
void gm_variant_note(gm_op op, gm_isa isa);

/* One variant of an op: compute items begin .. end-1 of what args describe. */
typedef void gm_items_fn(const void *args, int64_t begin, int64_t end, int worker);

/* A variant that exists on x86-64 only. */
#if defined(__x86_64__)
#define GM_X86(fn) (fn)
#else
#define GM_X86(fn) NULL
#endif

/* The best variant that is not above the device's instruction set; noted. */
gm_isa gm_variant_pick(gm_op op, const gm_device *dev, gm_items_fn *const table[GM_N_ISA]);
/* Pick a variant and spread n items over the device's threads. */
void gm_op_run(gm_op op, gm_device *dev, gm_items_fn *const table[GM_N_ISA], const void *args, int64_t n,
               int64_t grain);
/* The same for a variant that was picked before. */
void gm_items_run(gm_device *dev, gm_items_fn *fn, const void *args, int64_t n, int64_t grain);

/* So many items of `cost` elements each are worth a thread. */
static inline int64_t gm_grain(int64_t cost)
{
    return cost >= 8192 ? 1 : 8192 / (cost < 1 ? 1 : cost);
}

#endif
