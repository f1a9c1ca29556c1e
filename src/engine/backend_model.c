#include "engine/backend.h"

static gm_status step(void *self, const gm_batch *batch, gm_error *err)
{
    return gm_model_step(self, batch, err);
}

static gm_status logits(void *self, int32_t out_begin, int32_t n_rows, float *out, gm_error *err)
{
    return gm_model_logits(self, out_begin, n_rows, out, err);
}

static gm_status copy_slots(void *self, const gm_slot_copy *copies, int32_t n, gm_error *err)
{
    return gm_model_copy_slots(self, copies, n, err);
}

gm_backend gm_backend_from_model(gm_model *m)
{
    return (gm_backend){.self = m, .step = step, .logits = logits, .copy_slots = copy_slots};
}
