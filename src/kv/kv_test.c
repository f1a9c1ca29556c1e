#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kv/kv.h"

static void check(gm_kv *kv)
{
    gm_error err = {0};
    if (gm_kv_check(kv, &err)) fail_msg("%s", err.message);
}

static gm_kv *make(int32_t page_tokens, int32_t n_pages, int32_t n_slots)
{
    gm_kv *kv = NULL;
    gm_kv_params p = {.page_tokens = page_tokens, .n_pages = n_pages, .n_slots = n_slots};
    assert_int_equal(gm_kv_create(&kv, &p, NULL), GM_OK);
    return kv;
}

static void grows_by_pages(void **state)
{
    (void)state;
    gm_kv *kv = make(4, 5, 1);
    gm_kv_seq s, o;
    assert_int_equal(gm_kv_seq_init(&s, 4, 17, NULL), GM_OK);
    assert_int_equal(gm_kv_seq_init(&o, 4, 8, NULL), GM_OK);
    assert_int_equal(s.cap_pages, 5);
    assert_int_equal(gm_kv_pages_for(kv, 0), 0);
    assert_int_equal(gm_kv_grow(kv, &s, 4), GM_OK);
    assert_int_equal(s.n_pages, 1);
    assert_int_equal(gm_kv_grow(kv, &s, 5), GM_OK);
    assert_int_equal(s.n_pages, 2);
    assert_int_equal(gm_kv_grow(kv, &o, 8), GM_OK);
    assert_int_equal(gm_kv_grow(kv, &s, 17), GM_ECAPACITY);
    assert_int_equal(s.n_pages, 2);
    check(kv);
    assert_int_equal(gm_kv_take_slot(kv, &s), GM_OK);
    assert_int_equal(gm_kv_take_slot(kv, &s), GM_OK); /* once only */
    assert_int_equal(gm_kv_take_slot(kv, &o), GM_ECAPACITY);
    check(kv);
    gm_kv_release(kv, &s);
    assert_int_equal(gm_kv_pages_free(kv), 3);
    assert_int_equal(gm_kv_slots_free(kv), 1);
    gm_kv_release(kv, &o);
    gm_kv_release(kv, &o); /* holds nothing: nothing happens */
    check(kv);
    gm_kv_seq_fini(&s);
    gm_kv_seq_fini(&o);
    gm_kv_destroy(kv);
}

static void no_state_needs_no_slot(void **state)
{
    (void)state;
    gm_kv *kv = make(4, 2, 0);
    gm_kv_seq s;
    assert_int_equal(gm_kv_seq_init(&s, 4, 4, NULL), GM_OK);
    assert_int_equal(gm_kv_take_slot(kv, &s), GM_OK);
    assert_int_equal(s.slot.id, -1);
    gm_kv_release(kv, &s);
    gm_kv_seq_fini(&s);
    gm_kv_destroy(kv);
}

/* A page that a table holds and the pool does not know about, and the reverse, are both found. */
static void check_finds_faults(void **state)
{
    (void)state;
    gm_kv *kv = make(4, 4, 2);
    gm_kv_seq s;
    assert_int_equal(gm_kv_seq_init(&s, 4, 16, NULL), GM_OK);
    assert_int_equal(gm_kv_grow(kv, &s, 8), GM_OK);
    gm_page kept = s.pages[1];
    s.pages[1] = s.pages[0];
    assert_int_equal(gm_kv_check(kv, NULL), GM_EINTERNAL);
    s.pages[1] = (gm_page){3};
    assert_int_equal(gm_kv_check(kv, NULL), GM_EINTERNAL);
    s.pages[1] = kept;
    s.slot = (gm_slot){1};
    assert_int_equal(gm_kv_check(kv, NULL), GM_EINTERNAL);
    s.slot = GM_SLOT_NONE;
    check(kv);
    gm_kv_release(kv, &s);
    gm_kv_seq_fini(&s);
    gm_kv_destroy(kv);
}

static void random_operations(void **state)
{
    (void)state;
    enum { N = 9, TOKENS = 40 };
    gm_kv *kv = make(3, 20, 4);
    gm_kv_seq s[N];
    gm_rng rng;
    gm_rng_init(&rng, 5);
    int32_t len[N] = {0};
    for (int i = 0; i < N; i++) assert_int_equal(gm_kv_seq_init(&s[i], 3, TOKENS, NULL), GM_OK);
    for (int step = 0; step < 100000; step++) {
        uint64_t i = gm_rng_below(&rng, N), op = gm_rng_below(&rng, 4);
        if (op < 2) {
            int32_t want = len[i] + (int32_t)gm_rng_below(&rng, 9);
            if (want > TOKENS) want = TOKENS;
            int32_t before = s[i].n_pages;
            if (gm_kv_grow(kv, &s[i], want) == GM_OK) len[i] = want;
            else assert_int_equal(s[i].n_pages, before);
        } else if (op == 2) {
            (void)gm_kv_take_slot(kv, &s[i]);
        } else {
            gm_kv_release(kv, &s[i]);
            len[i] = 0;
        }
        check(kv);
    }
    for (int i = 0; i < N; i++) {
        gm_kv_release(kv, &s[i]);
        gm_kv_seq_fini(&s[i]);
    }
    assert_int_equal(gm_kv_pages_free(kv), 20);
    assert_int_equal(gm_kv_slots_free(kv), 4);
    gm_kv_destroy(kv);
}

/* ---- prefix caching ---- */

static const gm_prefix_salt no_salt;

static gm_kv *make_cached(int32_t page_tokens, int32_t n_pages, int32_t n_slots)
{
    gm_kv *kv = NULL;
    gm_kv_params p = {.page_tokens = page_tokens, .n_pages = n_pages, .n_slots = n_slots, .prefix_caching = true};
    assert_int_equal(gm_kv_create(&kv, &p, NULL), GM_OK);
    return kv;
}

/* A sequence that computes tokens[0..n) and keeps its state at the end; returns how many were cached. */
static int32_t run(gm_kv *kv, gm_kv_seq *s, const int32_t *tokens, int32_t n, int32_t n_max, int32_t *matched)
{
    gm_slot_copy c;
    int32_t m, hit = gm_kv_resume(kv, s, no_salt, tokens, n_max, matched ? matched : &m);
    check(kv);
    assert_int_equal(gm_kv_take_slot(kv, s), GM_OK);
    (void)gm_kv_take_load(s, &c);
    assert_int_equal(gm_kv_grow(kv, s, n), GM_OK);
    gm_kv_share(kv, s, no_salt, tokens, n);
    check(kv);
    (void)gm_kv_try_snapshot(kv, s, n / gm_kv_page_tokens(kv) * gm_kv_page_tokens(kv), GM_SNAPSHOT_STAYS, &c);
    check(kv);
    return hit;
}

static void goes_on_from_what_is_cached(void **state)
{
    (void)state;
    static const int32_t x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, y[] = {1, 2, 3, 4, 5, 6, 7, 9, 9, 9, 9, 9};
    for (int slots = 0; slots < 5; slots += 4) {
        gm_kv *kv = make_cached(4, 8, slots);
        gm_kv_seq a, b;
        int32_t matched;
        assert_int_equal(gm_kv_seq_init(&a, 4, 16, NULL), GM_OK);
        assert_int_equal(gm_kv_seq_init(&b, 4, 16, NULL), GM_OK);
        assert_int_equal(run(kv, &a, x, 11, 10, NULL), 0);
        gm_page first = a.pages[0], second = a.pages[1], part = a.pages[2];
        assert_int_equal(run(kv, &b, x, 12, 11, NULL), 8); /* beside a, which is running */
        assert_int_equal(b.pages[0].id, first.id);
        assert_int_equal(b.pages[1].id, second.id);
        assert_int_not_equal(b.pages[2].id, part.id);
        assert_int_equal(gm_kv_pages_free(kv), 4);
        gm_kv_release(kv, &b);
        gm_kv_release(kv, &a);
        check(kv);
        assert_int_equal(gm_kv_pages_free(kv), 8);
        assert_int_equal(gm_kv_cached_get(kv).pages, 3);
        assert_int_equal(gm_kv_resume(kv, &a, no_salt, x, 12, &matched), 12);
        assert_int_equal(matched, 12);
        gm_kv_release(kv, &a);
        /* y parts from x in the second page: with state there is nothing to go on from, only pages that match */
        assert_int_equal(gm_kv_resume(kv, &a, no_salt, y, 11, &matched), slots ? 0 : 4);
        assert_int_equal(matched, 4);
        gm_kv_release(kv, &a);
        assert_int_equal(gm_kv_resume(kv, &a, gm_prefix_salt_of("s", 1), x, 11, &matched), 0);
        assert_int_equal(matched, 0);
        assert_true(gm_kv_reset_prefix(kv));
        check(kv);
        assert_int_equal(gm_kv_cached_get(kv).pages + gm_kv_cached_get(kv).snapshots, 0);
        assert_int_equal(gm_kv_resume(kv, &a, no_salt, x, 12, &matched), 0);
        gm_kv_seq_fini(&a);
        gm_kv_seq_fini(&b);
        gm_kv_destroy(kv);
    }
}

/* Two sequences compute the same side by side: it is stored once from then on. */
static void same_content_is_stored_once(void **state)
{
    (void)state;
    static const int32_t x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    gm_kv *kv = make_cached(4, 8, 0);
    gm_kv_seq a, b;
    assert_int_equal(gm_kv_seq_init(&a, 4, 8, NULL), GM_OK);
    assert_int_equal(gm_kv_seq_init(&b, 4, 8, NULL), GM_OK);
    assert_int_equal(gm_kv_grow(kv, &a, 8), GM_OK);
    assert_int_equal(gm_kv_grow(kv, &b, 8), GM_OK);
    gm_kv_share(kv, &a, no_salt, x, 8);
    assert_int_equal(gm_kv_pages_free(kv), 4);
    gm_kv_share(kv, &b, no_salt, x, 8);
    check(kv);
    assert_int_equal(gm_kv_pages_free(kv), 6);
    assert_memory_equal(a.pages, b.pages, 2 * sizeof *a.pages);
    assert_false(gm_kv_reset_prefix(kv));
    gm_kv_release(kv, &a);
    check(kv);
    assert_int_equal(gm_kv_pages_free(kv), 6);
    gm_kv_release(kv, &b);
    check(kv);
    gm_kv_seq_fini(&a);
    gm_kv_seq_fini(&b);
    gm_kv_destroy(kv);
}

/* The cache is full of two conversations; the older one comes back. Its beginning is pinned before anything is
 * evicted for it, pages and state alike, though it is what would have gone first. */
static void what_a_prompt_begins_with_is_not_evicted_for_it(void **state)
{
    (void)state;
    int32_t x[24], y[8];
    for (int32_t i = 0; i < 24; i++) x[i] = i;
    for (int32_t i = 0; i < 8; i++) y[i] = 50 + i;
    gm_kv *kv = make_cached(4, 4, 3);
    gm_kv_seq s, o;
    assert_int_equal(gm_kv_seq_init(&s, 4, 24, NULL), GM_OK);
    assert_int_equal(gm_kv_seq_init(&o, 4, 24, NULL), GM_OK);
    assert_int_equal(run(kv, &s, x, 8, 7, NULL), 0);
    gm_kv_release(kv, &s);
    assert_int_equal(run(kv, &s, y, 8, 7, NULL), 0);
    gm_kv_release(kv, &s);
    assert_int_equal(gm_kv_cached_get(kv).pages, 4);
    assert_int_equal(gm_kv_cached_get(kv).snapshots, 2);
    assert_int_equal(gm_kv_take_slot(kv, &o), GM_OK); /* the last free slot */
    assert_int_equal(run(kv, &s, x, 16, 15, NULL), 8);
    assert_int_equal(gm_kv_cached_get(kv).pages_evicted, 2);
    gm_kv_release(kv, &s);
    gm_kv_release(kv, &o);
    gm_kv_seq_fini(&o);
    gm_kv_seq_fini(&s);
    gm_kv_destroy(kv);

    /* One slot in all: the state that the prompt goes on from is the slot it runs in. */
    kv = make_cached(4, 4, 1);
    gm_slot_copy c;
    int32_t matched;
    assert_int_equal(gm_kv_seq_init(&s, 4, 24, NULL), GM_OK);
    assert_int_equal(run(kv, &s, x, 4, 3, NULL), 0); /* nowhere to keep its state */
    gm_kv_release(kv, &s);
    check(kv);
    assert_int_equal(gm_kv_cached_get(kv).snapshots, 0);
    assert_int_equal(gm_kv_resume(kv, &s, no_salt, x, 8, &matched), 0);
    assert_int_equal(matched, 4);
    gm_kv_seq_fini(&s);
    gm_kv_destroy(kv);

    kv = make_cached(4, 4, 2);
    assert_int_equal(gm_kv_seq_init(&s, 4, 24, NULL), GM_OK);
    assert_int_equal(gm_kv_seq_init(&o, 4, 24, NULL), GM_OK);
    assert_int_equal(run(kv, &s, x, 4, 3, NULL), 0);
    gm_slot kept = {1 - s.slot.id};
    gm_kv_release(kv, &s);
    assert_int_equal(gm_kv_take_slot(kv, &o), GM_OK); /* takes the free one */
    assert_int_equal(gm_kv_resume(kv, &s, no_salt, x, 8, &matched), 4);
    assert_int_equal(gm_kv_take_slot(kv, &s), GM_OK);
    assert_int_equal(s.slot.id, kept.id);
    assert_false(gm_kv_take_load(&s, &c));
    check(kv);
    gm_kv_release(kv, &s);
    gm_kv_release(kv, &o);
    gm_kv_seq_fini(&s);
    gm_kv_seq_fini(&o);
    gm_kv_destroy(kv);
}

/* A turn's snapshot moves along with it; one that others use stays. */
static void the_end_of_a_turn_moves(void **state)
{
    (void)state;
    int32_t x[32];
    for (int32_t i = 0; i < 32; i++) x[i] = i;
    gm_kv *kv = make_cached(4, 16, 4);
    gm_kv_seq s, o;
    gm_slot_copy c;
    int32_t matched;
    assert_int_equal(gm_kv_seq_init(&s, 4, 32, NULL), GM_OK);
    assert_int_equal(gm_kv_seq_init(&o, 4, 32, NULL), GM_OK);
    assert_int_equal(gm_kv_take_slot(kv, &s), GM_OK);
    for (int32_t n = 4; n <= 16; n += 4) {
        assert_int_equal(gm_kv_grow(kv, &s, n), GM_OK);
        gm_kv_share(kv, &s, no_salt, x, n);
        assert_true(gm_kv_try_snapshot(kv, &s, n, n > 4 ? GM_SNAPSHOT_MOVES : GM_SNAPSHOT_STAYS, &c));
        assert_int_equal(c.from.id, s.slot.id);
        if (n == 4) assert_false(gm_kv_try_snapshot(kv, &s, n, GM_SNAPSHOT_STAYS, &c)); /* there already */
        check(kv);
        if (n == 12) { /* a second one goes on from here, so it is no longer the first one's to move */
            assert_int_equal(gm_kv_resume(kv, &o, no_salt, x, 15, &matched), 12);
            gm_kv_release(kv, &o);
        }
    }
    assert_int_equal(gm_kv_resume(kv, &o, no_salt, x, 15, &matched), 12);
    gm_kv_release(kv, &o);
    gm_kv_release(kv, &s);
    assert_int_equal(gm_kv_resume(kv, &o, no_salt, x, 32, &matched), 16);
    gm_kv_drop_snapshot(kv, gm_kv_take_slot(kv, &o) ? GM_SLOT_NONE : o.load_from);
    check(kv);
    gm_kv_release(kv, &o);
    gm_kv_seq_fini(&s);
    gm_kv_seq_fini(&o);
    gm_kv_destroy(kv);
}

/* Sequences of very few different tokens on pools that are too small, beside a record of what each page and each slot
 * really holds: whatever is handed out as a beginning is that beginning. */
enum { SHADOW_PAGES = 24, SHADOW_SLOTS = 7, SHADOW_PAGE = 2, SHADOW_TOKENS = 18, SHADOW_SEQS = 6 };

typedef struct shadow_seq {
    gm_kv_seq s;
    int32_t tokens[SHADOW_TOKENS], n, computed, prompt;
    bool running;
} shadow_seq;

typedef struct shadow {
    gm_kv *kv;
    gm_rng rng;
    shadow_seq q[SHADOW_SEQS];
    uint64_t page[SHADOW_PAGES], slot[SHADOW_SLOTS]; /* hash of the tokens up to the page's end, and of the state */
    int32_t n_slots;
    int64_t hits;
} shadow;

static uint64_t hash_of(const shadow_seq *q, int32_t n)
{
    uint64_t h = 99;
    for (int32_t i = 0; i < n; i++) h = gm_mix64(h, (uint64_t)q->tokens[i] + 7);
    return h;
}

static void shadow_start(shadow *w, shadow_seq *q)
{
    int32_t matched;
    gm_slot_copy c;
    q->n = 2 + (int32_t)gm_rng_below(&w->rng, SHADOW_TOKENS - 1);
    q->prompt = 1 + (int32_t)gm_rng_below(&w->rng, (uint64_t)q->n);
    for (int32_t i = 0; i < q->n; i++) q->tokens[i] = gm_rng_below(&w->rng, 8) == 0;
    int32_t hit = gm_kv_resume(w->kv, &q->s, no_salt, q->tokens, q->n - 1, &matched);
    check(w->kv);
    assert_true(hit <= matched && matched < q->n && hit % SHADOW_PAGE == 0);
    for (int32_t i = 0; i < hit / SHADOW_PAGE; i++)
        assert_true(w->page[q->s.pages[i].id] == hash_of(q, (i + 1) * SHADOW_PAGE));
    if (gm_kv_take_slot(w->kv, &q->s) != GM_OK) {
        gm_kv_release(w->kv, &q->s);
        return;
    }
    if (gm_kv_take_load(&q->s, &c)) w->slot[c.to.id] = w->slot[c.from.id];
    if (hit > 0 && w->n_slots) assert_true(w->slot[q->s.slot.id] == hash_of(q, hit));
    w->hits += hit;
    q->computed = hit;
    q->running = true;
}

static void shadow_advance(shadow *w, shadow_seq *q)
{
    int32_t to = q->computed + 1 + (int32_t)gm_rng_below(&w->rng, 5);
    if (to > q->n) to = q->n;
    if (gm_kv_grow(w->kv, &q->s, to) != GM_OK) return;
    for (int32_t i = q->computed / SHADOW_PAGE; i * SHADOW_PAGE < to; i++) {
        assert_true(i >= q->s.n_shared); /* nobody else may read what is written now */
        w->page[q->s.pages[i].id] = (i + 1) * SHADOW_PAGE <= to ? hash_of(q, (i + 1) * SHADOW_PAGE) : 1;
    }
    q->computed = to;
    if (w->n_slots) w->slot[q->s.slot.id] = hash_of(q, to);
    check(w->kv);
    if (gm_rng_below(&w->rng, 9) == 0) return; /* the step failed: nothing of it becomes known */
    gm_kv_share(w->kv, &q->s, no_salt, q->tokens, to);
    check(w->kv);
    gm_slot_copy c;
    if (to % SHADOW_PAGE || gm_rng_below(&w->rng, 4) == 0) return;
    gm_snapshot_kind kind = to > q->prompt                   ? GM_SNAPSHOT_MOVES
                            : gm_rng_below(&w->rng, 2) ? GM_SNAPSHOT_REGULAR
                                                       : GM_SNAPSHOT_STAYS;
    if (!gm_kv_try_snapshot(w->kv, &q->s, to, kind, &c)) return;
    assert_int_equal(c.from.id, q->s.slot.id);
    if (gm_rng_below(&w->rng, 12) == 0) gm_kv_drop_snapshot(w->kv, c.to);
    else w->slot[c.to.id] = w->slot[c.from.id];
}

static void random_prefixes(void **state)
{
    (void)state;
    static shadow w;
    for (int32_t round = 0; round < 4; round++) {
        w = (shadow){.n_slots = round == 0 ? 0 : 2 * round + 1};
        w.kv = make_cached(SHADOW_PAGE, round == 3 ? 12 : SHADOW_PAGES, w.n_slots);
        gm_rng_init(&w.rng, (uint64_t)round);
        for (int i = 0; i < SHADOW_SEQS; i++)
            assert_int_equal(gm_kv_seq_init(&w.q[i].s, SHADOW_PAGE, SHADOW_TOKENS, NULL), GM_OK);
        for (int step = 0; step < 100000; step++) {
            shadow_seq *q = &w.q[gm_rng_below(&w.rng, SHADOW_SEQS)];
            if (!q->running) shadow_start(&w, q);
            else if (q->computed < q->n && gm_rng_below(&w.rng, 10)) shadow_advance(&w, q);
            else {
                gm_kv_release(w.kv, &q->s);
                q->running = false;
            }
            check(w.kv);
            if (gm_rng_below(&w.rng, 3000) == 0) (void)gm_kv_reset_prefix(w.kv);
        }
        for (int i = 0; i < SHADOW_SEQS; i++) {
            gm_kv_release(w.kv, &w.q[i].s);
            gm_kv_seq_fini(&w.q[i].s);
        }
        check(w.kv);
        gm_kv_cached c = gm_kv_cached_get(w.kv);
        print_message("%lld tokens of beginnings, %lld pages and %lld snapshots evicted\n", (long long)w.hits,
                      (long long)c.pages_evicted, (long long)c.snapshots_evicted);
        assert_true(w.hits > 500 && c.pages_evicted > 0 && (w.n_slots == 0 || c.snapshots_evicted > 0));
        assert_int_equal(gm_kv_pages_free(w.kv), gm_kv_pages_total(w.kv)); /* free or cached */
        assert_int_equal(gm_kv_slots_free(w.kv), w.n_slots);
        assert_true(gm_kv_reset_prefix(w.kv));
        check(w.kv);
        gm_kv_destroy(w.kv);
    }
}

static void creation_reports(void **state)
{
    (void)state;
    gm_kv_params p = {.page_tokens = 4, .n_pages = 4, .n_slots = 2, .prefix_caching = true};
    gm_kv *kv = NULL;
    gm_status st = GM_ENOMEM;
    long n = 1;
    for (; st; n++) {
        gm_alloc_fail_at(n);
        st = gm_kv_create(&kv, &p, NULL);
        if (st) assert_int_equal(st, GM_ENOMEM);
    }
    assert_true(n > 5);
    gm_kv_destroy(kv);
    gm_kv_seq s;
    gm_alloc_fail_at(1);
    assert_int_equal(gm_kv_seq_init(&s, 4, 4, NULL), GM_ENOMEM);
    gm_kv_seq_fini(&s);
    gm_alloc_fail_at(0);
    p.page_tokens = 0;
    assert_int_equal(gm_kv_create(&kv, &p, NULL), GM_EARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_by_pages),     cmocka_unit_test(no_state_needs_no_slot),
        cmocka_unit_test(check_finds_faults), cmocka_unit_test(random_operations),
        cmocka_unit_test(goes_on_from_what_is_cached),
        cmocka_unit_test(same_content_is_stored_once),
        cmocka_unit_test(what_a_prompt_begins_with_is_not_evicted_for_it),
        cmocka_unit_test(the_end_of_a_turn_moves),
        cmocka_unit_test(random_prefixes),
        cmocka_unit_test(creation_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
