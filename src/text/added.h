/* The literals of added tokens: leftmost, then longest match. */
#ifndef GM_TEXT_ADDED_H
#define GM_TEXT_ADDED_H

#include "text/u64_map.h"

typedef struct gm_added_set {
    gm_u64_map edges; /* node << 8 | byte -> node; the root is 0 */
    int32_t *ids;     /* of the literal that ends at a node; -1: none */
    size_t n_nodes, cap_nodes;
    bool first[256]; /* bytes that open a literal */
} gm_added_set;

/* False: the literal is there already. */
bool gm_added_set_put(gm_added_set *a, const char *text, size_t len, int32_t id);
void gm_added_set_fini(gm_added_set *a);
/* The first match in text[at..end); -1: none. */
int32_t gm_added_set_find(const gm_added_set *a, const char *text, size_t at, size_t end, size_t *begin,
                          size_t *match_len);
/* The id of exactly this literal; -1: none. */
int32_t gm_added_set_id(const gm_added_set *a, const char *text, size_t len);

#endif
