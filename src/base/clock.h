/* Monotonic time in microseconds and wall time in seconds. The pure folders (kv, sched, plan) never include this:
 * they are handed the time. */
#ifndef GM_BASE_CLOCK_H
#define GM_BASE_CLOCK_H

#include <stdint.h>

int64_t gm_now_us(void);
double gm_wall_s(void);

#endif
