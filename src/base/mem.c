#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Thread_local long fail_countdown;
static _Thread_local long fail_calls;
static _Thread_local int forbid_depth;

#ifdef NDEBUG
#define GUARD() ((void)0)
#else
#define GUARD() GM_ASSERT(forbid_depth == 0)
#endif

static _Noreturn void out_of_memory(size_t size)
{
    fprintf(stderr, "glimmer: out of memory (%zu bytes asked for)\n", size);
    abort();
}

void *gm_alloc(size_t size)
{
    GUARD();
    void *p = calloc(1, size ? size : 1);
    if (!p) out_of_memory(size);
    return p;
}

void *gm_alloc_array(size_t n, size_t size)
{
    GUARD();
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p) out_of_memory(n * size);
    return p;
}

void *gm_realloc_array(void *p, size_t n, size_t size)
{
    size_t total;
    GUARD();
    if (__builtin_mul_overflow(n, size, &total)) out_of_memory(SIZE_MAX);
    void *q = realloc(p, total ? total : 1);
    if (!q) out_of_memory(total);
    return q;
}

char *gm_strdup(const char *s)
{
    return gm_strndup(s, strlen(s));
}

char *gm_strndup(const char *s, size_t len)
{
    char *p = gm_alloc(len + 1);
    if (len) memcpy(p, s, len);
    return p;
}

void gm_free(void *p)
{
    free(p);
}

static bool injected_failure(void)
{
    fail_calls++;
    return fail_countdown > 0 && --fail_countdown == 0;
}

void *gm_try_alloc(size_t n, size_t size)
{
    GUARD();
    if (injected_failure()) return NULL;
    return calloc(n ? n : 1, size ? size : 1);
}

void *gm_pages_alloc(size_t size)
{
    GUARD();
    if (injected_failure()) return NULL;
    void *p = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    /* Huge pages spare most of the TLB misses of weights and cache; it is only advice. */
    if (size >= (size_t)2 << 20) (void)madvise(p, size, MADV_HUGEPAGE);
    return p;
}

void gm_pages_free(void *p, size_t size)
{
    if (p) munmap(p, size ? size : 1);
}

long gm_alloc_fail_at(long nth)
{
    long made = fail_calls;
    fail_calls = 0;
    fail_countdown = nth;
    return made;
}

void gm_alloc_forbid(void)
{
    forbid_depth++;
}

void gm_alloc_permit(void)
{
    GM_ASSERT(forbid_depth > 0);
    forbid_depth--;
}

/* ---- arena ---- */

struct gm_arena_block {
    struct gm_arena_block *next;
    size_t used, cap;
    _Alignas(16) unsigned char bytes[];
};

void *gm_arena_alloc(gm_arena *a, size_t size)
{
    enum { BLOCK_MIN = 16 * 1024 };
    GM_ASSERT(size < SIZE_MAX / 2);
    size_t need = (size + 15) & ~(size_t)15;
    struct gm_arena_block *b = a->head;
    if (!b || b->cap - b->used < need) {
        size_t cap = need > BLOCK_MIN ? need : BLOCK_MIN;
        b = gm_alloc(sizeof *b + cap);
        b->cap = cap;
        b->next = a->head;
        a->head = b;
    }
    void *p = b->bytes + b->used;
    b->used += need;
    a->used_bytes += need;
    return p;
}

char *gm_arena_strndup(gm_arena *a, const char *s, size_t len)
{
    char *p = gm_arena_alloc(a, len + 1);
    if (len) memcpy(p, s, len);
    return p;
}

void gm_arena_fini(gm_arena *a)
{
    struct gm_arena_block *b = a->head;
    while (b) {
        struct gm_arena_block *next = b->next;
        gm_free(b);
        b = next;
    }
    a->head = NULL;
    a->used_bytes = 0;
}
