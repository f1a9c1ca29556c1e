/* Prompts and lengths to ask for. The same seed gives the same requests as vLLM's client gives (np_random.h),
 * except that lengths are exact: where decoding and encoding again does not come out at the length asked for
 * after the ten tries that vLLM makes, the end of the prompt is replaced by words that do. */
#ifndef GM_BENCH_DATASET_H
#define GM_BENCH_DATASET_H

#include "base/opts.h"
#include "text/tokenizer.h"

typedef struct gm_sample {
    char *text; /* NULL where only ids are known */
    size_t text_len;
    int32_t *ids; /* of the text; NULL where they are not kept */
    int32_t n_ids;
    int32_t prompt_len; /* tokens asked for; -1: unknown */
    int32_t output_len; /* -1: the server's default */
} gm_sample;

typedef struct gm_dataset {
    gm_sample *samples;
    size_t n, cap;
    int64_t token_mismatch; /* what vLLM's own procedure would have missed the lengths by, summed up */
    size_t n_repaired;      /* prompts whose end was replaced to make their length exact */
    size_t n_oversampled;   /* samples drawn again because the file has too few */
} gm_dataset;

typedef struct gm_dataset_params {
    const gm_tokenizer *tokenizer; /* NULL: ids only, drawn below vocab_size */
    const char *model_dir;         /* for the chat template; may be NULL */
    int32_t vocab_size;            /* with no tokenizer */
    bool keep_ids;
    bool chat; /* the server renders its own template: the client must not */
} gm_dataset_params;

/* What s->dataset_name asks for: s->num_prompts samples. */
gm_status gm_dataset_draw(gm_dataset *out, const gm_settings *s, const gm_dataset_params *p, gm_error *err);
/* n prompts like those of d (the same lengths in turn) that are not among them: for warm-ups and probes. */
gm_status gm_dataset_draw_warmups(gm_dataset *out, const gm_dataset *d, size_t n, uint64_t seed,
                                  const gm_dataset_params *p, gm_error *err);
void gm_dataset_fini(gm_dataset *d);

/* The random data set alone, for tests. */
typedef struct gm_random_shape {
    int64_t input_len, output_len, prefix_len;
    double input_ratio, output_ratio; /* [0, 1) */
} gm_random_shape;
gm_status gm_random_shape_read(gm_random_shape *out, const gm_settings *s, gm_error *err);

#endif
