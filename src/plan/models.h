/* The configs of the released checkpoints, reduced to the keys that are read, so that a plan needs no
 * download. */
#ifndef GM_PLAN_MODELS_H
#define GM_PLAN_MODELS_H

#include "config/model_config.h"

/* glm-5.2 (BF16, as released under that name; -fp8, -bf16), glm-5.3-flash (FP8; -fp8, -bf16); otherwise a
 * checkpoint folder or the path of a config.json. hf_overrides may be NULL. */
gm_status gm_model_open(gm_model_config *out, const char *name_or_path, const json_t *hf_overrides,
                        gm_error *err);

#endif
