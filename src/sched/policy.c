#include "sched/policy.h"

bool gm_policy_before(gm_sched_policy policy, const gm_request *a, const gm_request *b)
{
    if (policy == GM_POLICY_FCFS) return a->place < b->place;
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->arrived_us != b->arrived_us) return a->arrived_us < b->arrived_us;
    return a->id < b->id;
}

int32_t gm_policy_victim(gm_sched_policy policy, gm_request *const *running, int32_t n)
{
    if (policy == GM_POLICY_FCFS) return n - 1;
    int32_t victim = 0;
    for (int32_t i = 1; i < n; i++)
        if (gm_policy_before(policy, running[victim], running[i])) victim = i;
    return victim;
}
