/* Request bodies: what is the same in all is written once. */
#ifndef GM_BENCH_BODY_H
#define GM_BENCH_BODY_H

#include "bench/dataset.h"

typedef struct gm_body_maker {
    bool chat;
    bool own_limit; /* --extra-body sets the token limit itself */
    gm_str common;  /* members that all share, without braces */
} gm_body_maker;

/* model: the name sent. ignore_eos as resolved by the caller. */
void gm_body_maker_init(gm_body_maker *m, const gm_settings *s, bool chat, const char *model,
                        bool ignore_eos);
void gm_body_maker_fini(gm_body_maker *m);
void gm_body_make(const gm_body_maker *m, const gm_sample *sample, gm_str *out);

#endif
