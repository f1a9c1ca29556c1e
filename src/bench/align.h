/* Prompts against the server's own count. */
#ifndef GM_BENCH_ALIGN_H
#define GM_BENCH_ALIGN_H

#include "bench/client.h"
#include "bench/dataset.h"

/* Compare with POST base/tokenize a few prompts of d; where the server counts otherwise, rewrite all of them
 * with its own tokens until it counts what was asked for. A server without a tokenizer gets token ids instead
 * of text, if d keeps them
 * (*ids_only). Notices are printed. Servers without /tokenize are left as they are. */
gm_status gm_align_to_server(gm_dataset *d, gm_client *c, const char *base, const char *model, bool *ids_only,
                             gm_error *err);

#endif
