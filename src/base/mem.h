/* Allocation.
 *
 * gm_alloc() and kin abort when memory is out: internal allocations are small
 * and nobody can act on it. gm_try_alloc() returns NULL instead; it is for
 * sizes that come from outside or are large, and it is what failure injection
 * acts on. All are released with gm_free(). Returned memory is zeroed.
 *
 * A step of the engine allocates nothing: between gm_alloc_forbid() and
 * gm_alloc_permit() every allocation of the same thread aborts in debug builds
 * (GM_ALLOC_GUARD), because there it would be a latency spike that no test sees. */
#ifndef GM_BASE_MEM_H
#define GM_BASE_MEM_H

#include "base/status.h"

void *gm_alloc(size_t size);
void *gm_alloc_array(size_t n, size_t size); /* aborts when n * size overflows */
void *gm_realloc_array(void *p, size_t n, size_t size); /* new bytes are not zeroed */
char *gm_strdup(const char *s);
char *gm_strndup(const char *s, size_t len);
void gm_free(void *p);
#define gm_new(T) ((T *)gm_alloc(sizeof(T)))
#define gm_new_array(T, n) ((T *)gm_alloc_array((size_t)(n), sizeof(T)))

/* NULL when memory is out, when n * size overflows, or when failure is injected. */
void *gm_try_alloc(size_t n, size_t size);

/* Large, 64-byte aligned, zeroed pages straight from the system; NULL when there are none.
 * Released with gm_pages_free(p, size). size may be 0 (then p is a valid address that must not be read). */
void *gm_pages_alloc(size_t size);
void gm_pages_free(void *p, size_t size);

/* Failure injection for tests: the nth following gm_try_alloc() or gm_pages_alloc() of this thread
 * (1 = the next) returns NULL. 0 turns it off. Returns how many such calls were made since it was set. */
long gm_alloc_fail_at(long nth);

void gm_alloc_forbid(void);
void gm_alloc_permit(void);

/* An arena: many small pieces that are released in one call. Zeroed, 16-byte aligned. */
typedef struct gm_arena {
    struct gm_arena_block *head;
    size_t used_bytes;
} gm_arena;
void *gm_arena_alloc(gm_arena *a, size_t size);
char *gm_arena_strndup(gm_arena *a, const char *s, size_t len);
void gm_arena_fini(gm_arena *a); /* leaves an empty arena that can be used again */

#endif
