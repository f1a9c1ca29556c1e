/* The random data set: consecutive ids from a random start, made into text and counted again. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "bench/dataset_internal.h"

enum { TRIES = 10, WORDS_MAX = 2048, TAIL = 8, THREADS_MAX = 64, WINDOW = 512, WINDOW_TOKENS = 4000000 };

static gm_status read_ratio(const json_t *v, double *out, const char *what, gm_error *err)
{
    if (!json_is_number(v))
        return gm_fail(err, GM_EARG, "argument --random-range-ratio: %s is not a number", what);
    *out = json_number_value(v);
    if (*out >= 0 && *out < 1) return GM_OK;
    return gm_fail(err, GM_EARG, "argument --random-range-ratio: %s must be in [0, 1), not %g", what, *out);
}

gm_status gm_random_shape_read(gm_random_shape *out, const gm_settings *s, gm_error *err)
{
    json_t *v = NULL;
    const char *text = s->random_range_ratio;
    *out = (gm_random_shape){
        .input_len = gm_settings_given(s, input_len) ? s->input_len : s->random_input_len,
        .output_len = gm_settings_given(s, output_len) ? s->output_len : s->random_output_len,
        .prefix_len = s->random_prefix_len};
    gm_status st = gm_json_parse(&v, text, strlen(text), "argument --random-range-ratio", NULL, err);
    if (st) return GM_EARG;
    if (json_is_object(v)) {
        st = read_ratio(json_object_get(v, "input"), &out->input_ratio, "\"input\"", err);
        if (!st) st = read_ratio(json_object_get(v, "output"), &out->output_ratio, "\"output\"", err);
    } else {
        st = read_ratio(v, &out->input_ratio, "the ratio", err);
        out->output_ratio = out->input_ratio;
    }
    json_decref(v);
    return st;
}

/* ---- prompts of an exact length ---- */

static gm_status encode(const gm_prompt_maker *m, const gm_str *text, gm_ids *out, gm_error *err)
{
    out->n = 0;
    return gm_tokenizer_encode(m->p->tokenizer, gm_str_c(text), text->len, GM_ADDED_MATCH, out, err);
}

static gm_status decode(const gm_prompt_maker *m, const gm_ids *ids, gm_str *out, gm_error *err)
{
    gm_str_clear(out);
    return gm_tokenizer_decode(m->p->tokenizer, ids->data, ids->n, false, out, err);
}

static bool is_plain_word(const char *b, size_t n)
{
    if (n < 3 || b[0] != ' ') return false;
    for (size_t i = 1; i < n; i++)
        if (b[i] < 'a' || b[i] > 'z') return false;
    return true;
}

/* Tokens that are a blank and letters: pre-splitting cuts before each, so they keep their ids side by side.
 */
static void find_words(gm_prompt_maker *m)
{
    gm_str text = {0};
    gm_ids ids = {0};
    for (int32_t i = 0; i < m->n_allowed && m->words.n < WORDS_MAX; i++) {
        size_t n;
        const char *b = gm_tokenizer_bytes(m->p->tokenizer, m->allowed[i], &n);
        if (!b || !is_plain_word(b, n)) continue;
        gm_str_clear(&text);
        for (int k = 0; k < 3; k++) gm_str_append(&text, b, n);
        if (encode(m, &text, &ids, NULL)) continue;
        if (ids.n == 3 && ids.data[0] == m->allowed[i] && ids.data[2] == m->allowed[i])
            gm_ids_push(&m->words, m->allowed[i]);
    }
    gm_ids_fini(&ids);
    gm_str_fini(&text);
}

gm_status gm_prompt_maker_init(gm_prompt_maker *m, const gm_dataset_params *p, gm_error *err)
{
    *m = (gm_prompt_maker){.p = p};
    int32_t n = p->tokenizer ? gm_tokenizer_size(p->tokenizer) : p->vocab_size;
    if (n < 1)
        return gm_fail(err, GM_EARG,
                       "without a tokenizer the vocabulary's size must be known (--model FOLDER)");
    m->allowed = gm_new_array(int32_t, n);
    for (int32_t id = 0; id < n; id++) {
        if (!p->tokenizer) {
            m->allowed[m->n_allowed++] = id;
            m->vocab_size++;
            continue;
        }
        size_t len;
        if (!gm_tokenizer_bytes(p->tokenizer, id, &len) || gm_tokenizer_is_added(p->tokenizer, id)) continue;
        m->vocab_size++;
        m->allowed[m->n_allowed++] = id;
    }
    /* all_special_ids are added tokens, which lie above the vocabulary proper: none is left to take out */
    if (p->tokenizer) find_words(m);
    return GM_OK;
}

void gm_prompt_maker_fini(gm_prompt_maker *m)
{
    gm_free(m->allowed);
    gm_ids_fini(&m->words);
}

void gm_draft_begin(gm_draft *w, int32_t target)
{
    w->seq.n = w->again.n = 0;
    gm_str_clear(&w->text);
    w->target = target;
    w->rounds = 0;
    w->settled = w->failed = false;
}

void gm_draft_fini(gm_draft *w)
{
    gm_ids_fini(&w->seq);
    gm_ids_fini(&w->again);
    gm_str_fini(&w->text);
}

/* vLLM's gen_prompt_decode_to_target_len(): ten rounds of decode, encode, cut or append. Without rng it stops
 * where the next thing would be to append. */
static gm_status round_trips(const gm_prompt_maker *m, gm_draft *w, gm_pcg64 *rng, gm_error *err)
{
    size_t want = (size_t)w->target;
    while (!w->settled) {
        if (w->rounds && w->seq.n < want) {
            if (!rng) return GM_OK;
            while (w->seq.n < want) gm_ids_push(&w->seq, (int32_t)gm_pcg64_integer(rng, 0, m->vocab_size));
        }
        if (w->rounds && w->seq.n > want) w->seq.n = want;
        gm_status st = decode(m, &w->seq, &w->text, err);
        if (!st) st = encode(m, &w->text, &w->again, err);
        if (st) return st;
        gm_ids t = w->seq;
        w->seq = w->again;
        w->again = t;
        w->settled = w->rounds++ == TRIES || w->seq.n == want;
    }
    return GM_OK;
}

void gm_draft_advance(const gm_prompt_maker *m, gm_draft *w)
{
    if (m->p->tokenizer && !w->settled) w->failed = round_trips(m, w, NULL, NULL) != GM_OK;
}

/* Cut ever more off the end and put single-token words there instead, until the text counts right: w->text
 * and w->again. The words come from a stream of their own, so that the other prompts are those of vLLM. */
static gm_status repair(const gm_prompt_maker *m, gm_draft *w, gm_error *err)
{
    gm_rng r;
    gm_status st;
    gm_str cut = {0};
    size_t want = (size_t)w->target;
    gm_rng_init(&r, w->seq.n ? (uint64_t)w->seq.data[0] * 1000003u + w->seq.n : 0);
    if (!m->words.n) return gm_fail(err, GM_ENOTSUP, "this tokenizer has no words to fill up prompts with");
    for (size_t tail = TAIL;; tail *= 4) {
        size_t keep = want > tail ? want - tail : 0;
        if (w->seq.n > keep) w->seq.n = keep;
        st = decode(m, &w->seq, &cut, err);
        if (!st) st = encode(m, &cut, &w->again, err);
        if (st) break;
        size_t have = w->again.n;
        for (int turn = 0; !st && turn < 4 && have < want; turn++) {
            gm_str_clear(&w->text);
            gm_str_append(&w->text, gm_str_c(&cut), cut.len);
            for (size_t i = have; i < want; i++) {
                size_t n;
                const char *b =
                    gm_tokenizer_bytes(m->p->tokenizer, m->words.data[gm_rng_below(&r, m->words.n)], &n);
                gm_str_append(&w->text, b, n);
            }
            st = encode(m, &w->text, &w->again, err);
            if (!st && w->again.n == want) {
                gm_str_fini(&cut);
                return GM_OK;
            }
        }
        if (st) break;
        if (!w->seq.n) {
            st = gm_fail(err, GM_ENOTSUP, "no prompt of exactly %d tokens could be made", (int)w->target);
            break;
        }
    }
    gm_str_fini(&cut);
    return st;
}

gm_status gm_draft_finish(const gm_prompt_maker *m, gm_draft *w, gm_dataset *d, int32_t output_len,
                          gm_pcg64 *rng, gm_error *err)
{
    gm_status st = GM_OK;
    const gm_ids *ids = &w->seq;
    if (m->p->tokenizer) {
        if ((st = round_trips(m, w, rng, err))) return st;
        if (w->seq.n != (size_t)w->target) {
            d->token_mismatch += (int64_t)w->seq.n - w->target;
            d->n_repaired++;
            if ((st = repair(m, w, err))) return st;
            ids = &w->again;
        }
    }
    gm_sample *s = gm_dataset_add(d);
    s->prompt_len = w->target;
    s->output_len = output_len;
    if (m->p->tokenizer) {
        s->text = gm_strndup(gm_str_c(&w->text), w->text.len);
        s->text_len = w->text.len;
    }
    if (m->p->keep_ids || !m->p->tokenizer) {
        s->n_ids = w->target;
        s->ids = gm_new_array(int32_t, w->target);
        memcpy(s->ids, ids->data, (size_t)w->target * sizeof *s->ids);
    }
    return GM_OK;
}

/* ---- many at once ---- */

typedef struct crew {
    const gm_prompt_maker *m;
    gm_draft *drafts;
    size_t n;
    atomic_size_t next;
} crew;

static void *advance_some(void *arg)
{
    crew *c = arg;
    for (size_t i; (i = atomic_fetch_add(&c->next, 1)) < c->n;) gm_draft_advance(c->m, &c->drafts[i]);
    return NULL;
}

/* Each draft as far as it comes without random numbers, on all processors: the order of the draws stays that
 * of one. */
static void advance_all(const gm_prompt_maker *m, gm_draft *drafts, size_t n)
{
    pthread_t threads[THREADS_MAX];
    crew c = {.m = m, .drafts = drafts, .n = n};
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int n_threads = 0, want = (int)(cpus < 1 ? 1 : cpus > THREADS_MAX ? THREADS_MAX : cpus) - 1;
    while (n_threads < want && (size_t)n_threads + 1 < n &&
           !pthread_create(&threads[n_threads], NULL, advance_some, &c))
        n_threads++;
    advance_some(&c);
    for (int i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
}

/* ---- the data set ---- */

typedef struct bounds {
    int64_t low, high; /* both included */
} bounds;

static bounds bounds_of(int64_t len, double ratio)
{
    return (bounds){(int64_t)floor((double)len * (1 - ratio)), (int64_t)ceil((double)len * (1 + ratio))};
}

static gm_status check_shape(const gm_random_shape *h, bounds in, gm_error *err)
{
    if (in.low + h->prefix_len < 1)
        return gm_fail(err, GM_EARG,
                       "--random-input-len %lld with ratio %g and --random-prefix-len %lld makes prompts "
                       "without a token",
                       (long long)h->input_len, h->input_ratio, (long long)h->prefix_len);
    if (in.high + h->prefix_len > 1 << 28) return gm_fail(err, GM_EARG, "--random-input-len is too large");
    return GM_OK;
}

static void draw(gm_pcg64 *g, int64_t *out, size_t n, int64_t low, int64_t high)
{
    for (size_t i = 0; i < n; i++) out[i] = gm_pcg64_integer(g, low, high);
}

typedef struct plan {
    int64_t *lens, *outs, *offsets; /* [n] each, in one piece */
    int32_t *prefix;
    int64_t prefix_len;
    size_t n;
} plan;

/* Requests first..: as many as fit a window are drafted. Returns how many. */
static size_t draft_window(const gm_prompt_maker *m, const plan *a, size_t first, gm_draft *drafts)
{
    size_t k = 0;
    for (int64_t tokens = 0; first + k < a->n && k < WINDOW && tokens < WINDOW_TOKENS; k++) {
        size_t i = first + k;
        gm_draft *w = &drafts[k];
        gm_draft_begin(w, (int32_t)(a->prefix_len + a->lens[i]));
        for (int64_t j = 0; j < a->prefix_len; j++) gm_ids_push(&w->seq, a->prefix[j]);
        for (int64_t j = 0; j < a->lens[i]; j++)
            gm_ids_push(&w->seq, m->allowed[(a->offsets[i] + (int64_t)i + j) % m->n_allowed]);
        tokens += w->target;
    }
    return k;
}

static gm_status make_all(const gm_prompt_maker *m, const plan *a, gm_dataset *d, gm_pcg64 *g, gm_error *err)
{
    gm_draft *drafts = gm_new_array(gm_draft, WINDOW);
    gm_status st = GM_OK;
    for (size_t first = 0, k; first < a->n && !st; first += k) {
        k = draft_window(m, a, first, drafts);
        advance_all(m, drafts, k);
        for (size_t i = 0; i < k && !st; i++)
            st = gm_draft_finish(m, &drafts[i], d, (int32_t)a->outs[first + i], g, err);
    }
    for (size_t i = 0; i < WINDOW; i++) gm_draft_fini(&drafts[i]);
    gm_free(drafts);
    return st;
}

gm_status gm_dataset_random(gm_dataset *d, const gm_settings *s, const gm_dataset_params *p, gm_error *err)
{
    gm_random_shape h;
    gm_prompt_maker m = {0};
    gm_pcg64 g;
    size_t n = (size_t)s->num_prompts;
    gm_status st = gm_random_shape_read(&h, s, err);
    if (st) return st;
    bounds in = bounds_of(h.input_len, h.input_ratio), out = bounds_of(h.output_len, h.output_ratio);
    if (out.low < 1) out.low = 1;
    if (out.high < 1) out.high = 1;
    if ((st = check_shape(&h, in, err)) || (st = gm_prompt_maker_init(&m, p, err))) {
        gm_prompt_maker_fini(&m);
        return st;
    }
    int64_t *lens = gm_new_array(int64_t, 3 * n);
    plan a = {lens, lens + n, lens + 2 * n, gm_new_array(int32_t, h.prefix_len), h.prefix_len, n};
    gm_pcg64_seed(&g, (uint64_t)s->seed);
    draw(&g, a.lens, n, in.low, in.high + 1);
    draw(&g, a.outs, n, out.low, out.high + 1);
    draw(&g, a.offsets, n, 0, m.vocab_size);
    for (int64_t i = 0; i < h.prefix_len; i++) a.prefix[i] = m.allowed[gm_pcg64_integer(&g, 0, m.n_allowed)];
    st = make_all(&m, &a, d, &g, err);
    gm_free(a.prefix);
    gm_free(lens);
    gm_prompt_maker_fini(&m);
    return st;
}

gm_status gm_dataset_draw_warmups(gm_dataset *out, const gm_dataset *d, size_t n, uint64_t seed,
                                  const gm_dataset_params *p, gm_error *err)
{
    gm_prompt_maker m;
    gm_draft w = {0};
    gm_pcg64 g;
    const uint32_t words[] = {(uint32_t)seed, (uint32_t)(seed >> 32),
                              0x77617261u}; /* a stream beside that of the data set */
    memset(out, 0, sizeof *out);
    if (!n) return GM_OK;
    gm_status st = gm_prompt_maker_init(&m, p, err);
    gm_pcg64_init(&g, words, 3);
    for (size_t i = 0; i < n && !st; i++) {
        const gm_sample *like = &d->samples[i % d->n];
        gm_draft_begin(&w, like->prompt_len > 0 ? like->prompt_len : 32);
        for (int32_t k = 0; k < w.target; k++)
            gm_ids_push(&w.seq, m.allowed[gm_pcg64_integer(&g, 0, m.n_allowed)]);
        st = gm_draft_finish(&m, &w, out, like->output_len, &g, err);
    }
    gm_draft_fini(&w);
    gm_prompt_maker_fini(&m);
    if (st) gm_dataset_fini(out);
    return st;
}
