/* What the subcommands share: from settings to a running engine. */
#ifndef GM_CMD_CMD_H
#define GM_CMD_CMD_H

#include "base/opts.h"
#include "config/footprint.h"
#include "engine/engine.h"
#include "server/openai.h"
#include "text/chat.h"

int gm_cmd_serve(int argc, char **argv);
int gm_cmd_chat(int argc, char **argv);
int gm_cmd_inspect(int argc, char **argv);
int gm_cmd_bench(int argc, char **argv);

/* Parse, or show help. False: leave with *status. */
bool gm_cmd_settings(gm_settings *s, gm_opt_command command, int argc, char **argv, int *status);

/* A checkpoint with all that runs it, sized for this machine. Zero-initialise; fini takes a half-loaded one. */
typedef struct gm_loaded {
    gm_model_config config;
    gm_tokenizer *tokenizer; /* NULL with --skip-tokenizer-init */
    gm_chat_format chat;
    gm_api_defaults defaults;
    gm_act act;
    gm_kv_dtype kv_dtype;
    gm_footprint foot;
    int32_t model_len, seqs, batch_tokens, n_pages, n_slots, vocab_used; /* n_slots: of running requests and snapshots */
    int32_t n_snapshots;
    gm_device *device;
    gm_weights *weights;
    gm_model *model;
    gm_backend backend;
    gm_engine *engine;
} gm_loaded;

/* Config, tokenizer, sampling defaults: quick, and enough to refuse what cannot work. */
gm_status gm_load_front(gm_loaded *l, const gm_settings *s, gm_error *err);
/* Weights, cache, engine; logs what a server of this kind logs. */
gm_status gm_load_engine(gm_loaded *l, const gm_settings *s, gm_error *err);
void gm_loaded_fini(gm_loaded *l);

int64_t gm_available_memory(void); /* bytes; 0: unknown */
void gm_put_commas(gm_str *out, int64_t v);

#endif
