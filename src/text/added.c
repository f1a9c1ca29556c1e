#include "text/added.h"

#include "base/mem.h"

static uint64_t new_node(gm_added_set *a)
{
    if (a->n_nodes == a->cap_nodes) {
        a->cap_nodes = a->cap_nodes ? 2 * a->cap_nodes : 64;
        a->ids = gm_realloc_array(a->ids, a->cap_nodes, sizeof *a->ids);
    }
    a->ids[a->n_nodes] = -1;
    return a->n_nodes++;
}

static uint64_t edge(const gm_added_set *a, uint64_t node, char byte)
{
    return gm_u64_map_get(&a->edges, node << 8 | (unsigned char)byte);
}

bool gm_added_set_put(gm_added_set *a, const char *text, size_t len, int32_t id)
{
    uint64_t node = 0;
    if (!a->n_nodes) new_node(a);
    for (size_t i = 0; i < len; i++) {
        uint64_t to = edge(a, node, text[i]);
        if (to == GM_U64_MAP_NONE) {
            to = new_node(a);
            gm_u64_map_put(&a->edges, node << 8 | (unsigned char)text[i], to);
        }
        node = to;
    }
    if (a->ids[node] >= 0) return false;
    a->ids[node] = id;
    if (len) a->first[(unsigned char)text[0]] = true;
    return true;
}

void gm_added_set_fini(gm_added_set *a)
{
    gm_u64_map_fini(&a->edges);
    gm_free(a->ids);
    *a = (gm_added_set){0};
}

static int32_t longest_at(const gm_added_set *a, const char *text, size_t at, size_t end, size_t *match_len)
{
    int32_t id = -1;
    uint64_t node = 0;
    for (size_t i = at; i < end && (node = edge(a, node, text[i])) != GM_U64_MAP_NONE; i++)
        if (a->ids[node] >= 0) {
            id = a->ids[node];
            *match_len = i + 1 - at;
        }
    return id;
}

int32_t gm_added_set_find(const gm_added_set *a, const char *text, size_t at, size_t end, size_t *begin,
                          size_t *match_len)
{
    for (size_t i = at; i < end; i++) {
        if (!a->first[(unsigned char)text[i]]) continue;
        int32_t id = longest_at(a, text, i, end, match_len);
        if (id >= 0) {
            *begin = i;
            return id;
        }
    }
    return -1;
}

int32_t gm_added_set_id(const gm_added_set *a, const char *text, size_t len)
{
    uint64_t node = 0;
    for (size_t i = 0; i < len && node != GM_U64_MAP_NONE; i++) node = edge(a, node, text[i]);
    return node == GM_U64_MAP_NONE || !a->n_nodes ? -1 : a->ids[node];
}
