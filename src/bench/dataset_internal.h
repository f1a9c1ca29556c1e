/* Shared by the data sets. */
#ifndef GM_BENCH_DATASET_INTERNAL_H
#define GM_BENCH_DATASET_INTERNAL_H

#include "bench/dataset.h"
#include "base/np_random.h"

gm_sample *gm_dataset_add(gm_dataset *d);

/* Makes prompts of exactly so many tokens. Unchanged after init: threads may share it. */
typedef struct gm_prompt_maker {
    const gm_dataset_params *p;
    int32_t vocab_size; /* ids that are not added tokens: 0 .. vocab_size - 1 */
    int32_t *allowed;   /* those without the special ones */
    int32_t n_allowed;
    gm_ids words; /* tokens that stay single whatever words stand around them */
} gm_prompt_maker;
gm_status gm_prompt_maker_init(gm_prompt_maker *m, const gm_dataset_params *p, gm_error *err);
void gm_prompt_maker_fini(gm_prompt_maker *m);

/* One prompt in the making. */
typedef struct gm_draft {
    gm_ids seq; /* the ids wanted, then those of text */
    gm_ids again;
    gm_str text;
    int32_t target;
    int rounds; /* of decoding and encoding that are done */
    bool settled, failed;
} gm_draft;
void gm_draft_begin(gm_draft *w, int32_t target); /* empties seq, for the caller to fill; keeps the room */
void gm_draft_fini(gm_draft *w);
/* Decode and encode until the length is right, as long as no random number is needed: the part that threads
 * may do. */
void gm_draft_advance(const gm_prompt_maker *m, gm_draft *w);
/* The rest, and the sample. rng as in vLLM: it draws what is missing after a round trip. */
gm_status gm_draft_finish(const gm_prompt_maker *m, gm_draft *w, gm_dataset *d, int32_t output_len,
                          gm_pcg64 *rng, gm_error *err);

gm_status gm_dataset_random(gm_dataset *d, const gm_settings *s, const gm_dataset_params *p, gm_error *err);
gm_status gm_dataset_sharegpt(gm_dataset *d, const gm_settings *s, const gm_dataset_params *p, gm_error *err);
gm_status gm_dataset_custom(gm_dataset *d, const gm_settings *s, const gm_dataset_params *p, gm_error *err);
gm_status gm_dataset_sonnet(gm_dataset *d, const gm_settings *s, const gm_dataset_params *p, gm_error *err);

#endif
