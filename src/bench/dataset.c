#include "bench/dataset.h"

#include <string.h>

#include "base/mem.h"
#include "bench/dataset_internal.h"

gm_sample *gm_dataset_add(gm_dataset *d)
{
    if (d->n == d->cap) {
        d->cap = d->cap ? 2 * d->cap : 64;
        d->samples = gm_realloc_array(d->samples, d->cap, sizeof *d->samples);
    }
    gm_sample *s = &d->samples[d->n++];
    *s = (gm_sample){.prompt_len = -1, .output_len = -1};
    return s;
}

void gm_dataset_fini(gm_dataset *d)
{
    for (size_t i = 0; i < d->n; i++) {
        gm_free(d->samples[i].text);
        gm_free(d->samples[i].ids);
    }
    gm_free(d->samples);
    memset(d, 0, sizeof *d);
}

/* As vLLM fills up: the same seed again, one choice for each missing sample. */
static void oversample(gm_dataset *d, const gm_settings *s)
{
    gm_mt19937 m;
    size_t have = d->n;
    gm_mt19937_seed_python(&m, (uint64_t)s->seed);
    while (d->n < (size_t)s->num_prompts) {
        size_t from = gm_mt19937_below(&m, (uint32_t)have);
        gm_sample *to = gm_dataset_add(d);
        *to = d->samples[from];
        to->text = to->text ? gm_strndup(to->text, to->text_len) : NULL;
        if (to->ids) {
            to->ids = gm_new_array(int32_t, to->n_ids);
            memcpy(to->ids, d->samples[from].ids, (size_t)to->n_ids * sizeof *to->ids);
        }
    }
    d->n_oversampled = d->n - have;
}

gm_status gm_dataset_draw(gm_dataset *out, const gm_settings *s, const gm_dataset_params *p, gm_error *err)
{
    static const struct {
        const char *name;
        gm_status (*draw)(gm_dataset *, const gm_settings *, const gm_dataset_params *, gm_error *);
        bool file;
    } sets[] = {{"random", gm_dataset_random, false},
                {"sharegpt", gm_dataset_sharegpt, true},
                {"custom", gm_dataset_custom, true},
                {"sonnet", gm_dataset_sonnet, true}};
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (strcmp(sets[i].name, s->dataset_name)) continue;
        if (sets[i].file && !s->dataset_path)
            return gm_fail(err, GM_EARG, "--dataset-name %s needs --dataset-path", sets[i].name);
        if (!sets[i].file && s->dataset_path)
            return gm_fail(err, GM_EARG, "--dataset-name %s makes its prompts: it takes no --dataset-path",
                           sets[i].name);
        gm_status st = sets[i].draw(out, s, p, err);
        if (!st && !out->n) st = gm_fail(err, GM_EFORMAT, "%s has no usable sample", s->dataset_path);
        if (st) {
            gm_dataset_fini(out);
            return st;
        }
        if (out->n < (size_t)s->num_prompts && !s->no_oversample) oversample(out, s);
        return GM_OK;
    }
    return gm_fail(err, GM_EARG, "argument --dataset-name: invalid choice: '%.64s'", s->dataset_name);
}
