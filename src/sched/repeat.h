/* Many identical steps at once: while every running request decodes one token a step and nothing else
 * changes, the plan of each step is that of the one before. For a caller on a virtual clock. */
#ifndef GM_SCHED_REPEAT_H
#define GM_SCHED_REPEAT_H

#include "sched/sched.h"

/* How many more times `step`, the last one planned by s and since appended to, would be planned unchanged: no
 * request ends, no page runs out, nobody is admitted. 0 where it may change at once. The caller vouches that
 * nothing was added or removed since. */
int32_t gm_sched_repeats(const gm_sched *s, const gm_kv *kv, const gm_step *step);

/* Do k of them, 0 <= k <= gm_sched_repeats(): as k rounds of gm_sched_step() and gm_sched_append() would. */
void gm_sched_repeat(gm_kv *kv, const gm_step *step, int32_t k);

#endif
