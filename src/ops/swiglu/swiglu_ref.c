#include "ops/swiglu/swiglu_internal.h"

#include <math.h>

void gm_swiglu_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_swiglu_args *a = args;
    int64_t spans = ((int64_t)a->d + GM_SWIGLU_SPAN - 1) / GM_SWIGLU_SPAN;
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / spans, first = item % spans * GM_SWIGLU_SPAN;
        int64_t last = first + GM_SWIGLU_SPAN < a->d ? first + GM_SWIGLU_SPAN : a->d;
        const float *gate = a->g + r * a->ldg, *up = a->u + r * a->ldu;
        float *y = a->y + r * a->ldy;
        for (int64_t i = first; i < last; i++) {
            float g = gate[i], u = up[i];
            if (a->limit > 0) {
                if (g > a->limit) g = a->limit;
                if (u > a->limit) u = a->limit;
                if (u < -a->limit) u = -a->limit;
            }
            y[i] = g / (1.0f + expf(-g)) * u;
        }
    }
}
