/* A checkpoint's tensors bound to the places where the forward pass uses them. Every tensor is checked: present,
 * shape from the config, a dtype that may stand there, its scale where it is FP8. Nothing is converted that can be
 * read in place: BF16, F32 and FP8 matrices stay mapped. */
#ifndef GM_MODEL_WEIGHTS_H
#define GM_MODEL_WEIGHTS_H

#include "config/model_config.h"
#include "device/device.h"

typedef struct gm_weights gm_weights;

/* Open <dir>/model*.safetensors for config c (kept by copy). Progress lines go to `progress` (may be NULL) as
 * (user, tensors bound, tensors in all, bytes bound). */
typedef struct gm_weights_progress {
    void (*fn)(void *user, int64_t tensors, int64_t tensors_all, int64_t bytes);
    void *user;
} gm_weights_progress;
gm_status gm_weights_open(gm_weights **out, const char *dir, const gm_model_config *c, gm_device *dev,
                          const gm_weights_progress *progress, gm_error *err);

/* Deterministic random weights of the shapes that c asks for (BF16, or FP8 where c->fp8), from `seed`. */
gm_status gm_weights_dummy(gm_weights **out, const gm_model_config *c, gm_device *dev, uint64_t seed,
                           gm_error *err);
void gm_weights_close(gm_weights *w);

const gm_model_config *gm_weights_config(const gm_weights *w);
int64_t gm_weights_bytes(const gm_weights *w); /* of the tensors in use */
/* One line on what was left unused (vision tower, MTP block, ...), "" when nothing was. */
const char *gm_weights_skipped(const gm_weights *w);

#endif
