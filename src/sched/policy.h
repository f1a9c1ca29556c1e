/* Order of requests: who is admitted first, and who gives up its space first. */
#ifndef GM_SCHED_POLICY_H
#define GM_SCHED_POLICY_H

#include "sched/request.h"

typedef enum gm_sched_policy { GM_POLICY_FCFS, GM_POLICY_PRIORITY } gm_sched_policy;

/* True where a is admitted before b. FCFS: by place in the queue; a preempted request is put in front of all.
 * Priority: by (priority, arrival, id), preempted or not. A total order: of two requests one comes first. */
bool gm_policy_before(gm_sched_policy policy, const gm_request *a, const gm_request *b);

/* Index of the request to preempt among running[0..n), n >= 1. FCFS: the last admitted. Priority: the last in
 * the order above, so that the first of that order is never a victim while another is left. */
int32_t gm_policy_victim(gm_sched_policy policy, gm_request *const *running, int32_t n);

#endif
