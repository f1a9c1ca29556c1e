/* Slots for recurrent state, one per running sequence. A pool of none is valid: the model keeps no state. */
#ifndef GM_KV_STATE_POOL_H
#define GM_KV_STATE_POOL_H

#include "base/status.h"
#include "kv/kv_types.h"

typedef struct gm_state_pool gm_state_pool;

gm_status gm_state_pool_create(gm_state_pool **out, int32_t n_slots, gm_error *err);
void gm_state_pool_destroy(gm_state_pool *p);

/* GM_ECAPACITY when all are out; that answer is ordinary (admission stops). */
gm_status gm_state_pool_take(gm_state_pool *p, gm_slot *slot);
void gm_state_pool_give(gm_state_pool *p, gm_slot slot);

int32_t gm_state_pool_total(const gm_state_pool *p);
int32_t gm_state_pool_free(const gm_state_pool *p);
bool gm_state_pool_taken(const gm_state_pool *p, gm_slot slot);

/* GM_EINTERNAL with the reason unless each slot is either free, once, or taken. */
gm_status gm_state_pool_check(const gm_state_pool *p, gm_error *err);

#endif
