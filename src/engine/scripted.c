#include "engine/backend.h"

#include "base/mem.h"
#include "base/rng.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* What a page holds. */
typedef struct page_state {
    int32_t len;      /* tokens stored in it */
    uint64_t hash;    /* of the sequence from its beginning to the last of them */
    int32_t n_prompt; /* of the sequence that wrote it; -1: not known yet. Used where there are no slots */
    int64_t named, written; /* step in which a slice last named it, and wrote into it */
} page_state;

typedef struct slot_state {
    int32_t len;
    uint64_t hash;
    int32_t n_prompt; /* -1: not known yet */
} slot_state;

typedef struct kept_row {
    int32_t pos;
    int32_t token; /* that the script wants next */
} kept_row;

struct gm_scripted {
    gm_script *scripts;
    int32_t n_scripts, vocab_size, end, page_tokens, n_pages, n_slots;
    int32_t *cells;     /* [n_pages][page_tokens] token ids */
    page_state *pages;  /* [n_pages] */
    slot_state *slots;  /* [n_slots] */
    int64_t *slot_step; /* step in which it was last named */
    kept_row *kept;     /* [n_pages * page_tokens] */
    int32_t n_kept;
    float *noise; /* [vocab_size] in [0, 1) */
    float margin;
    int64_t n_steps;
    int64_t n_copies;
    _Atomic int64_t step_us, fail_after, fail_count, fail_copies;
};

static gm_script *copy_scripts(const gm_script *scripts, int32_t n)
{
    gm_script *copy = gm_new_array(gm_script, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t *tokens = gm_new_array(int32_t, scripts[i].n);
        if (scripts[i].n > 0) memcpy(tokens, scripts[i].tokens, (size_t)scripts[i].n * sizeof *tokens);
        copy[i] = (gm_script){tokens, scripts[i].n};
    }
    return copy;
}

gm_scripted *gm_scripted_create(const gm_script *scripts, int32_t n_scripts, int32_t vocab_size, int32_t end,
                                int32_t page_tokens, int32_t n_pages, int32_t n_slots)
{
    GM_ASSERT(n_scripts >= 1 && vocab_size >= 1 && page_tokens >= 1 && n_pages >= 1 && n_slots >= 0);
    gm_scripted *s = gm_new(gm_scripted);
    s->scripts = copy_scripts(scripts, n_scripts);
    s->n_scripts = n_scripts;
    s->vocab_size = vocab_size;
    s->end = end;
    s->page_tokens = page_tokens;
    s->n_pages = n_pages;
    s->n_slots = n_slots;
    size_t n_cells = (size_t)n_pages * (size_t)page_tokens;
    s->cells = gm_new_array(int32_t, n_cells);
    s->kept = gm_new_array(kept_row, n_cells);
    s->pages = gm_new_array(page_state, n_pages);
    s->slots = gm_new_array(slot_state, n_slots);
    s->slot_step = gm_new_array(int64_t, n_slots);
    s->noise = gm_new_array(float, vocab_size);
    gm_rng rng;
    gm_rng_init(&rng, 1);
    for (int32_t i = 0; i < vocab_size; i++) s->noise[i] = (float)gm_rng_uniform(&rng);
    s->margin = 20;
    atomic_store(&s->fail_after, -1);
    atomic_store(&s->fail_count, 1);
    return s;
}

void gm_scripted_destroy(gm_scripted *s)
{
    if (!s) return;
    for (int32_t i = 0; i < s->n_scripts; i++) gm_free((void *)(uintptr_t)s->scripts[i].tokens);
    gm_free(s->scripts);
    gm_free(s->cells);
    gm_free(s->kept);
    gm_free(s->pages);
    gm_free(s->slots);
    gm_free(s->slot_step);
    gm_free(s->noise);
    gm_free(s);
}

void gm_scripted_set_step_us(gm_scripted *s, int64_t us)
{
    atomic_store(&s->step_us, us);
}

void gm_scripted_fail_after(gm_scripted *s, int64_t n_steps)
{
    atomic_store(&s->fail_after, n_steps);
}

void gm_scripted_fail_count(gm_scripted *s, int64_t n_steps)
{
    atomic_store(&s->fail_count, n_steps);
}

void gm_scripted_fail_copies(gm_scripted *s, int64_t n)
{
    atomic_store(&s->fail_copies, n);
}

int64_t gm_scripted_copies(const gm_scripted *s)
{
    return s->n_copies;
}

void gm_scripted_set_margin(gm_scripted *s, float margin)
{
    s->margin = margin;
}

int64_t gm_scripted_steps(const gm_scripted *s)
{
    return s->n_steps;
}

/* ---- the stored tokens ---- */

static int32_t *cell(const gm_scripted *s, const gm_slice *sl, int32_t pos)
{
    return &s->cells[(int64_t)sl->pages[pos / s->page_tokens].id * s->page_tokens + pos % s->page_tokens];
}

static uint64_t extend_hash(uint64_t h, int32_t token)
{
    return (h ^ ((uint64_t)(uint32_t)token + 1)) * 0x100000001B3u;
}

enum { HASH_START = 0x4BF29CE4 };

/* ---- checks ---- */

static gm_status check_pages(gm_scripted *s, const gm_slice *sl, int32_t i, gm_error *err)
{
    int64_t end = (int64_t)sl->begin.tok + sl->n.tok;
    if (sl->n.tok < 1 || sl->begin.tok < 0) return gm_fail(err, GM_EINTERNAL, "slice %d: no tokens", i);
    if (end > (int64_t)sl->n_pages * s->page_tokens)
        return gm_fail(err, GM_EINTERNAL, "slice %d: %lld tokens in %d pages", i, (long long)end,
                       sl->n_pages);
    for (int32_t k = 0; k < sl->n_pages; k++) {
        int32_t id = sl->pages[k].id;
        if (id < 0 || id >= s->n_pages) return gm_fail(err, GM_EINTERNAL, "slice %d: page %d", i, id);
        page_state *p = &s->pages[id];
        bool writes = k >= sl->begin.tok / s->page_tokens && k * (int64_t)s->page_tokens < end;
        if (p->written == s->n_steps || (writes && p->named == s->n_steps))
            return gm_fail(err, GM_EINTERNAL, "slice %d: page %d is shared and written", i, id);
        p->named = s->n_steps;
        if (writes) p->written = s->n_steps;
    }
    return GM_OK;
}

static gm_status check_slot(gm_scripted *s, const gm_slice *sl, int32_t i, gm_error *err)
{
    int32_t id = sl->slot.id;
    if (s->n_slots == 0)
        return id < 0 ? GM_OK : gm_fail(err, GM_EINTERNAL, "slice %d: slot %d of none", i, id);
    if (id < 0 || id >= s->n_slots) return gm_fail(err, GM_EINTERNAL, "slice %d: slot %d", i, id);
    if (s->slot_step[id] == s->n_steps)
        return gm_fail(err, GM_EINTERNAL, "slice %d: slot %d is shared", i, id);
    s->slot_step[id] = s->n_steps;
    return GM_OK;
}

/* Each page holds what was stored there behind just these pages, and the slot has seen the same tokens. *hash: of them. */
static gm_status check_past(const gm_scripted *s, const gm_slice *sl, int32_t i, uint64_t *hash, gm_error *err)
{
    int32_t len = sl->begin.tok;
    *hash = HASH_START;
    for (int32_t at = 0; at < len;) {
        const page_state *p = &s->pages[sl->pages[at / s->page_tokens].id];
        int32_t n = len - at < s->page_tokens ? len - at : s->page_tokens;
        for (int32_t k = 0; k < n; k++) *hash = extend_hash(*hash, *cell(s, sl, at + k));
        if (p->len != n || p->hash != *hash)
            return gm_fail(err, GM_EINTERNAL, "slice %d: page %d of its table changed: %d tokens, needs %d", i,
                           at / s->page_tokens, p->len, n);
        at += n;
    }
    if (s->n_slots == 0 || len == 0) return GM_OK;
    const slot_state *st = &s->slots[sl->slot.id];
    if (st->len != len || st->hash != *hash)
        return gm_fail(err, GM_EINTERNAL, "slice %d: slot %d has the state of another sequence", i, sl->slot.id);
    return GM_OK;
}

static gm_status check_batch(gm_scripted *s, const gm_batch *b, gm_error *err)
{
    int32_t n_tokens = 0;
    uint64_t hash;
    gm_status st = GM_OK;
    for (int32_t i = 0; i < b->n_slices && !st; i++) {
        const gm_slice *sl = &b->slices[i];
        if (sl->token_begin != n_tokens) return gm_fail(err, GM_EINTERNAL, "slice %d: a gap before it", i);
        st = check_pages(s, sl, i, err);
        if (!st) st = check_slot(s, sl, i, err);
        if (!st) st = check_past(s, sl, i, &hash, err);
        n_tokens += sl->n.tok;
    }
    if (st) return st;
    if (n_tokens != b->n_tokens || n_tokens == 0)
        return gm_fail(err, GM_EINTERNAL, "batch: %d tokens in slices, %d in all", n_tokens, b->n_tokens);
    for (int32_t i = 0; i < n_tokens; i++)
        if (b->token_ids[i] < 0 || b->token_ids[i] >= s->vocab_size)
            return gm_fail(err, GM_EINTERNAL, "batch: token id %d", b->token_ids[i]);
    for (int32_t i = 0; i < b->n_out; i++)
        if (b->out_rows[i] < (i ? b->out_rows[i - 1] + 1 : 0) || b->out_rows[i] >= n_tokens)
            return gm_fail(err, GM_EINTERNAL, "batch: output row %d", b->out_rows[i]);
    return GM_OK;
}

/* ---- what comes next ---- */

static bool ends_with(const gm_scripted *s, const gm_slice *sl, int32_t pos, const gm_script *script,
                      int32_t k)
{
    for (int32_t i = 0; i < k; i++)
        if (*cell(s, sl, pos - k + 1 + i) != script->tokens[i]) return false;
    return true;
}

/* How many tokens up to pos are output, judged by their values. */
static int32_t match(const gm_scripted *s, const gm_slice *sl, int32_t pos, const gm_script *script)
{
    int32_t last = pos;
    while (last > 0 && *cell(s, sl, last) == s->end) last--;
    if (last < pos && script->n <= last && ends_with(s, sl, last, script, script->n))
        return script->n + pos - last;
    for (int32_t k = script->n < pos ? script->n : pos; k > 0; k--)
        if (ends_with(s, sl, pos, script, k)) return k;
    return 0;
}

/* Where it is remembered how long the sequence's prompt is: beside its state, or in the page that it writes. */
static int32_t *n_prompt_of(const gm_scripted *s, const gm_slice *sl, int32_t pos)
{
    return s->n_slots > 0 ? &s->slots[sl->slot.id].n_prompt : &s->pages[sl->pages[pos / s->page_tokens].id].n_prompt;
}

/* A decode goes on from where the output is known to begin; after a longer slice (a prompt, a recomputation)
 * that is found out anew. */
static int32_t next_token(gm_scripted *s, const gm_slice *sl, int32_t pos)
{
    int32_t *n_prompt = n_prompt_of(s, sl, pos);
    const gm_script *script = &s->scripts[*cell(s, sl, 0) % s->n_scripts];
    if (sl->n.tok > 1 || *n_prompt < 0) *n_prompt = pos + 1 - match(s, sl, pos, script);
    int32_t i = pos + 1 - *n_prompt;
    return i < script->n ? script->tokens[i] : s->end;
}

static void store(gm_scripted *s, const gm_batch *b, const gm_slice *sl)
{
    uint64_t hash;
    int32_t end = sl->begin.tok + sl->n.tok, n_prompt = -1;
    (void)check_past(s, sl, 0, &hash, NULL);
    if (sl->begin.tok > 0) n_prompt = *n_prompt_of(s, sl, sl->begin.tok - 1);
    for (int32_t pos = sl->begin.tok; pos < end; pos++) {
        page_state *p = &s->pages[sl->pages[pos / s->page_tokens].id];
        *cell(s, sl, pos) = b->token_ids[sl->token_begin + pos - sl->begin.tok];
        hash = extend_hash(hash, *cell(s, sl, pos));
        p->len = pos % s->page_tokens + 1;
        p->hash = hash;
        p->n_prompt = n_prompt;
    }
    if (s->n_slots > 0) s->slots[sl->slot.id] = (slot_state){end, hash, n_prompt};
}

static void keep_rows(gm_scripted *s, const gm_batch *b)
{
    int32_t out = 0;
    for (int32_t i = 0; i < b->n_slices; i++) {
        const gm_slice *sl = &b->slices[i];
        int32_t first = out;
        for (; out < b->n_out && b->out_rows[out] < sl->token_begin + sl->n.tok; out++) {
            int32_t pos = sl->begin.tok + b->out_rows[out] - sl->token_begin;
            s->kept[out] = (kept_row){.pos = pos, .token = next_token(s, sl, pos)};
        }
        if (out - first > 1)
            *n_prompt_of(s, sl, sl->begin.tok + sl->n.tok - 1) = -1; /* rows of prompt log-probabilities */
    }
    s->n_kept = out;
}

/* ---- the backend ---- */

static void wait_us(int64_t us)
{
    struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
    if (us > 0) (void)nanosleep(&t, NULL);
}

static bool fails_now(gm_scripted *s)
{
    int64_t after = atomic_load(&s->fail_after);
    if (after < 0) return false;
    if (after > 0) {
        atomic_store(&s->fail_after, after - 1);
        return false;
    }
    int64_t count = atomic_fetch_sub(&s->fail_count, 1) - 1;
    if (count <= 0) {
        atomic_store(&s->fail_after, -1);
        atomic_store(&s->fail_count, 1);
    }
    return true;
}

/* A long step asks whether to go on this often, as the model does before each layer. */
enum { STOP_POLL_US = 2000 };

static gm_status step(void *self, const gm_batch *b, gm_error *err)
{
    gm_scripted *s = self;
    s->n_steps++;
    s->n_kept = 0;
    for (int64_t left = atomic_load(&s->step_us); left > 0; left -= STOP_POLL_US) {
        if (b->stop && b->stop(b->stop_user)) return gm_fail(err, GM_ECANCELED, "the step was abandoned");
        wait_us(left < STOP_POLL_US ? left : STOP_POLL_US);
    }
    gm_status st = check_batch(s, b, err);
    if (st) return st;
    if (fails_now(s)) return gm_fail(err, GM_EDEVICE, "scripted failure of step %lld", (long long)s->n_steps);
    for (int32_t i = 0; i < b->n_slices; i++) store(s, b, &b->slices[i]);
    keep_rows(s, b);
    return GM_OK;
}

/* What resumes from a copied state finds out anew where its output begins. */
static gm_status copy_slots(void *self, const gm_slot_copy *copies, int32_t n, gm_error *err)
{
    gm_scripted *s = self;
    if (atomic_load(&s->fail_copies) > 0) {
        atomic_fetch_sub(&s->fail_copies, 1);
        return gm_fail(err, GM_EDEVICE, "scripted failure of a copy");
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t from = copies[i].from.id, to = copies[i].to.id;
        if (from < 0 || from >= s->n_slots || to < 0 || to >= s->n_slots || from == to)
            return gm_fail(err, GM_EINTERNAL, "copy of slot %d to %d", from, to);
        s->slots[to] = s->slots[from];
        s->slots[to].n_prompt = -1;
        s->n_copies++;
    }
    return GM_OK;
}

static gm_status logits(void *self, int32_t out_begin, int32_t n_rows, float *out, gm_error *err)
{
    gm_scripted *s = self;
    if (out_begin < 0 || n_rows < 1 || out_begin + n_rows > s->n_kept)
        return gm_fail(err, GM_EINTERNAL, "logits of rows %d + %d, %d are kept", out_begin, n_rows,
                       s->n_kept);
    for (int32_t i = 0; i < n_rows; i++, out += s->vocab_size) {
        const kept_row *row = &s->kept[out_begin + i];
        int32_t shift = (int32_t)((int64_t)row->pos * 7919 % s->vocab_size), n_tail = s->vocab_size - shift;
        memcpy(out, s->noise + shift, (size_t)n_tail * sizeof *out);
        memcpy(out + n_tail, s->noise, (size_t)shift * sizeof *out);
        out[row->token] += s->margin;
    }
    return GM_OK;
}

gm_backend gm_scripted_backend(gm_scripted *s)
{
    return (gm_backend){.self = s, .step = step, .logits = logits, .copy_slots = copy_slots};
}
