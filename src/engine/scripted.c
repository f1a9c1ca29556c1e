#include "engine/backend.h"

#include "base/mem.h"
#include "base/rng.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* What a sequence left behind, found again by the first entry of its page table. */
typedef struct resident {
    int32_t len;      /* tokens stored */
    uint64_t hash;    /* of them */
    int32_t n_prompt; /* -1: not known yet */
} resident;

typedef struct slot_state {
    int32_t len;
    uint64_t hash;
} slot_state;

typedef struct kept_row {
    int32_t pos;
    int32_t token; /* that the script wants next */
} kept_row;

struct gm_scripted {
    gm_script *scripts;
    int32_t n_scripts, vocab_size, end, page_tokens, n_pages, n_slots;
    int32_t *cells;                 /* [n_pages][page_tokens] token ids */
    resident *residents;            /* [n_pages] */
    slot_state *slots;              /* [n_slots] */
    int64_t *page_step, *slot_step; /* step in which it was last named */
    kept_row *kept;                 /* [n_pages * page_tokens] */
    int32_t n_kept;
    float *noise; /* [vocab_size] in [0, 1) */
    float margin;
    int64_t n_steps;
    _Atomic int64_t step_us, fail_after, fail_count;
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
    s->residents = gm_new_array(resident, n_pages);
    s->slots = gm_new_array(slot_state, n_slots);
    s->page_step = gm_new_array(int64_t, n_pages);
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
    gm_free(s->residents);
    gm_free(s->slots);
    gm_free(s->page_step);
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

static uint64_t hash_cells(const gm_scripted *s, const gm_slice *sl, int32_t n)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (int32_t i = 0; i < n; i++) h = extend_hash(h, *cell(s, sl, i));
    return h;
}

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
        if (s->page_step[id] == s->n_steps)
            return gm_fail(err, GM_EINTERNAL, "slice %d: page %d is shared", i, id);
        s->page_step[id] = s->n_steps;
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

/* What was stored earlier is what this sequence stored, and the slot has seen the same tokens. */
static gm_status check_past(const gm_scripted *s, const gm_slice *sl, int32_t i, gm_error *err)
{
    int32_t len = sl->begin.tok;
    if (len == 0) return GM_OK;
    const resident *r = &s->residents[sl->pages[0].id];
    if (r->len != len)
        return gm_fail(err, GM_EINTERNAL, "slice %d: begins at %d, %d are stored", i, len, r->len);
    if (hash_cells(s, sl, len) != r->hash)
        return gm_fail(err, GM_EINTERNAL, "slice %d: its pages changed", i);
    if (s->n_slots == 0) return GM_OK;
    const slot_state *st = &s->slots[sl->slot.id];
    if (st->len != len || st->hash != r->hash)
        return gm_fail(err, GM_EINTERNAL, "slice %d: slot %d has the state of another sequence", i,
                       sl->slot.id);
    return GM_OK;
}

static gm_status check_batch(gm_scripted *s, const gm_batch *b, gm_error *err)
{
    int32_t n_tokens = 0;
    gm_status st = GM_OK;
    for (int32_t i = 0; i < b->n_slices && !st; i++) {
        const gm_slice *sl = &b->slices[i];
        if (sl->token_begin != n_tokens) return gm_fail(err, GM_EINTERNAL, "slice %d: a gap before it", i);
        st = check_pages(s, sl, i, err);
        if (!st) st = check_slot(s, sl, i, err);
        if (!st) st = check_past(s, sl, i, err);
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

/* A decode goes on from where the output is known to begin; after a longer slice (a prompt, a recomputation)
 * that is found out anew. */
static int32_t next_token(gm_scripted *s, const gm_slice *sl, int32_t pos)
{
    resident *r = &s->residents[sl->pages[0].id];
    const gm_script *script = &s->scripts[*cell(s, sl, 0) % s->n_scripts];
    if (sl->n.tok > 1 || r->n_prompt < 0) r->n_prompt = pos + 1 - match(s, sl, pos, script);
    int32_t i = pos + 1 - r->n_prompt;
    return i < script->n ? script->tokens[i] : s->end;
}

static void store(gm_scripted *s, const gm_batch *b, const gm_slice *sl)
{
    for (int32_t i = 0; i < sl->n.tok; i++)
        *cell(s, sl, sl->begin.tok + i) = b->token_ids[sl->token_begin + i];
    resident *r = &s->residents[sl->pages[0].id];
    if (sl->begin.tok == 0) r->n_prompt = -1;
    r->len = sl->begin.tok + sl->n.tok;
    r->hash = hash_cells(s, sl, r->len);
    if (s->n_slots > 0) s->slots[sl->slot.id] = (slot_state){r->len, r->hash};
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
            s->residents[sl->pages[0].id].n_prompt = -1; /* rows of prompt log-probabilities */
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
    return (gm_backend){.self = s, .step = step, .logits = logits};
}
