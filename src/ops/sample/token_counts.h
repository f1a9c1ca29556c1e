/* How often each token id stands in a sequence, for penalties: a list of the distinct ids with a hash table
 * over it, in memory that the caller provides, so that a step neither counts a long prompt again nor
 * allocates. */
#ifndef GM_OPS_TOKEN_COUNTS_H
#define GM_OPS_TOKEN_COUNTS_H

#include "base/status.h"

typedef struct gm_token_count {
    int32_t id;
    int32_t n_output; /* 0: only in the prompt */
} gm_token_count;

typedef struct gm_token_counts {
    gm_token_count *entries; /* [n] in the order of first appearance */
    int32_t n, cap;
    int32_t *table; /* [mask + 1] index of an entry + 1; 0: empty */
    uint32_t mask;
} gm_token_counts;

/* Bytes for up to n_distinct_max different ids; and a table over such memory, which must be zeroed, 8-byte
 * aligned and live as long as the table. */
size_t gm_token_counts_size(int32_t n_distinct_max);
void gm_token_counts_init(gm_token_counts *c, void *memory, int32_t n_distinct_max);

void gm_token_counts_add(gm_token_counts *c, int32_t id, bool output);

#endif
