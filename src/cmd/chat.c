/* A conversation in the terminal: the answer streams, thoughts are dimmed, Ctrl-C ends the answer and keeps the session. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "text/detok.h"
#include "text/tool_parse.h"

typedef struct tokens {
    int32_t *data;
    int32_t n, cap;
} tokens;

typedef struct session {
    gm_settings s;
    gm_loaded l;
    json_t *messages;
    bool color;

    pthread_mutex_t lock;
    pthread_cond_t more;
    tokens fresh; /* under lock: not shown yet */
    bool finished;
    gm_finish finish;
    char message[256];
    int32_t n_prompt, n_output;
    int64_t first_us, end_us, begun_us;
} session;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static void push(tokens *t, int32_t id)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 64;
        t->data = gm_realloc_array(t->data, (size_t)t->cap, sizeof *t->data);
    }
    t->data[t->n++] = id;
}

static void on_event(void *user, const gm_event *ev)
{
    session *v = user;
    pthread_mutex_lock(&v->lock);
    for (int32_t i = 0; ev->kind == GM_EVENT_TOKENS && i < ev->n_tokens; i++) push(&v->fresh, ev->tokens[i]);
    if (ev->kind == GM_EVENT_FINISH) {
        v->finished = true;
        v->finish = ev->finish;
        v->n_prompt = ev->n_prompt;
        v->n_output = ev->n_output;
        v->first_us = ev->first_token_us;
        v->end_us = ev->finished_us;
        snprintf(v->message, sizeof v->message, "%s", ev->message ? ev->message : "");
    }
    pthread_cond_signal(&v->more);
    pthread_mutex_unlock(&v->lock);
}

static bool is_end(const session *v, int32_t id)
{
    for (int32_t i = 0; i < v->l.config.n_eos; i++)
        if (v->l.config.eos[i] == id) return true;
    return false;
}

typedef struct answer {
    gm_detok detok;
    gm_reply *reply;
    gm_reply_deltas deltas;
    gm_str text, reasoning, content;
    bool dim;
} answer;

static void show(session *v, answer *a)
{
    for (size_t i = 0; i < a->deltas.n; i++) {
        const gm_reply_delta *d = &a->deltas.data[i];
        bool thought = d->kind == GM_REPLY_REASONING;
        gm_str_append(thought ? &a->reasoning : &a->content, d->text ? d->text : "", d->len);
        if (thought && !v->s.show_reasoning) continue;
        if (thought != a->dim) {
            if (v->color) fputs(thought ? "\033[2m" : "\033[0m", stdout);
            if (!thought) fputs(v->s.show_reasoning ? "\n" : "", stdout);
            a->dim = thought;
        }
        fwrite(d->text ? d->text : "", 1, d->len, stdout);
    }
    gm_reply_deltas_clear(&a->deltas);
    fflush(stdout);
}

/* Shows tokens until the request ends. */
static void follow(session *v, answer *a, gm_request_id id)
{
    bool cancelled = false, done = false;
    tokens now = {0};
    while (!done) {
        pthread_mutex_lock(&v->lock);
        while (!v->fresh.n && !v->finished && !(interrupted && !cancelled)) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_nsec += 100000000; /* a signal handler cannot wake a condition: look again */
            if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
            pthread_cond_timedwait(&v->more, &v->lock, &t);
        }
        tokens swap = now;
        now = v->fresh;
        v->fresh = swap;
        v->fresh.n = 0;
        done = v->finished;
        pthread_mutex_unlock(&v->lock);
        if (interrupted && !cancelled) {
            gm_engine_cancel(v->l.engine, id);
            cancelled = true;
        }
        for (int32_t i = 0; i < now.n; i++) {
            gm_str_clear(&a->text);
            if (!is_end(v, now.data[i])) gm_detok_push(&a->detok, now.data[i], &a->text, NULL);
            gm_reply_push(a->reply, gm_str_c(&a->text), a->text.len, &a->deltas);
        }
        show(v, a);
    }
    gm_free(now.data);
    gm_str_clear(&a->text);
    gm_detok_finish(&a->detok, &a->text);
    gm_reply_push(a->reply, gm_str_c(&a->text), a->text.len, &a->deltas);
    gm_reply_finish(a->reply, v->finish != GM_FINISH_STOP, &a->deltas);
    show(v, a);
    if (v->color) fputs("\033[0m", stdout);
}

static void remember(session *v, const answer *a)
{
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string("assistant"));
    if (a->reasoning.len) json_object_set_new(m, "reasoning_content", json_stringn(a->reasoning.data, a->reasoning.len));
    json_object_set_new(m, "content", json_stringn(gm_str_c(&a->content), a->content.len));
    json_array_append_new(v->messages, m);
}

static gm_sampling sampling_of(const session *v, int32_t n_prompt)
{
    gm_sampling s = GM_SAMPLING_DEFAULT;
    const gm_api_defaults *d = &v->l.defaults;
    s.temperature = (float)(gm_settings_given(&v->s, temperature) ? v->s.temperature : d->temperature);
    s.top_p = (float)(gm_settings_given(&v->s, top_p) ? v->s.top_p : d->top_p);
    s.top_k = (int32_t)d->top_k;
    s.min_p = (float)d->min_p;
    s.repetition_penalty = (float)d->repetition_penalty;
    s.max_tokens = v->l.model_len - n_prompt;
    if (v->s.max_tokens && v->s.max_tokens < s.max_tokens) s.max_tokens = (int32_t)v->s.max_tokens;
    return s;
}

static void report(const session *v)
{
    double first = 1e-6 * (double)(v->first_us - v->begun_us), rest = 1e-6 * (double)(v->end_us - v->first_us);
    const char *dim = v->color ? "\033[2m" : "", *off = v->color ? "\033[0m" : "";
    if (v->finish == GM_FINISH_ERROR) printf("\n[failed: %s]\n", v->message);
    else if (v->first_us)
        printf("\n%s[%d prompt tokens, first token after %.2f s; %d tokens%s%s]%s\n", dim, (int)v->n_prompt, first,
               (int)v->n_output, v->finish == GM_FINISH_LENGTH ? ", cut by the length limit" : "",
               interrupted ? ", stopped" : "", off);
    if (v->first_us && rest > 0 && v->n_output > 1)
        printf("%s[%.1f tokens/s]%s\n", dim, (v->n_output - 1) / rest, off);
}

/* The last message of the session is a question: answer it. */
static gm_status ask(session *v, gm_error *err)
{
    gm_chat_prompt prompt = {0};
    gm_ids ids = {0};
    gm_request_id id = 0;
    json_t *effort = v->s.reasoning_effort ? json_string(v->s.reasoning_effort) : NULL;
    gm_chat_request req = {.messages = v->messages,
                           .reasoning_effort = effort,
                           .kwargs = v->s.default_chat_template_kwargs,
                           .add_generation_prompt = true};
    gm_status st = gm_chat_render(&prompt, v->l.chat, &req, err);
    if (!st) st = gm_chat_encode(&prompt, v->l.tokenizer, v->s.special_tokens_in_text, &ids, err);
    if (!st && ids.n >= (size_t)v->l.model_len)
        st = gm_fail(err, GM_ECAPACITY, "the conversation has %zu tokens, the model takes %d", ids.n, (int)v->l.model_len);
    answer a = {0};
    gm_detok_init(&a.detok, v->l.tokenizer, true);
    gm_reply_params rp = {.thinking = prompt.thinking, .reasoning = true, .parallel = true};
    a.reply = gm_reply_create(&rp);
    if (!st) {
        v->finished = false;
        v->first_us = v->end_us = 0;
        v->begun_us = gm_now_us();
        interrupted = 0;
        gm_submit s = {.prompt = ids.data,
                       .n_prompt = (int32_t)ids.n,
                       .sampling = sampling_of(v, (int32_t)ids.n),
                       .sink = {on_event, v}};
        st = gm_engine_submit(v->l.engine, &s, &id, err);
    }
    if (!st) {
        follow(v, &a, id);
        report(v);
        remember(v, &a);
    }
    gm_reply_destroy(a.reply);
    gm_reply_deltas_fini(&a.deltas);
    gm_str_fini(&a.text);
    gm_str_fini(&a.reasoning);
    gm_str_fini(&a.content);
    gm_chat_prompt_fini(&prompt);
    gm_ids_fini(&ids);
    json_decref(effort);
    return st;
}

static void add_message(session *v, const char *role, const char *text)
{
    json_t *m = json_object();
    size_t n = strlen(text), ok = gm_utf8_valid_len(text, n);
    json_object_set_new(m, "role", json_string(role));
    json_object_set_new(m, "content", json_stringn(text, ok));
    json_array_append_new(v->messages, m);
}

static void restart(session *v)
{
    json_decref(v->messages);
    v->messages = json_array();
    if (v->s.system) add_message(v, "system", v->s.system);
}

static gm_status say(session *v, const char *text, gm_error *err)
{
    add_message(v, "user", text);
    gm_status st = ask(v, err);
    if (st) json_array_remove(v->messages, json_array_size(v->messages) - 1);
    return st;
}

static void talk(session *v)
{
    char *line = NULL;
    size_t cap = 0;
    bool tty = isatty(STDIN_FILENO);
    if (tty) puts("/new starts over, /quit or Ctrl-D leaves, Ctrl-C stops an answer.");
    for (;;) {
        gm_error err = {0};
        interrupted = 0;
        if (tty) fputs(v->color ? "\n\033[1m> \033[0m" : "\n> ", stdout);
        fflush(stdout);
        errno = 0;
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0 && errno == EINTR) {
            clearerr(stdin);
            continue;
        }
        if (n < 0) break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
        if (!n) continue;
        if (!strcmp(line, "/quit") || !strcmp(line, "/exit")) break;
        if (!strcmp(line, "/new")) restart(v);
        else if (say(v, line, &err)) printf("[%s]\n", err.message);
    }
    free(line);
    putchar('\n');
}

int gm_cmd_chat(int argc, char **argv)
{
    session v = {0};
    gm_error err = {0};
    int status;
    if (!gm_cmd_settings(&v.s, GM_OPT_CHAT, argc, argv, &status)) return status;
    bool verbose = gm_settings_given(&v.s, uvicorn_log_level);
    gm_log_set_level(verbose ? GM_LOG_INFO : GM_LOG_WARNING);
    pthread_mutex_init(&v.lock, NULL);
    pthread_cond_init(&v.more, NULL);
    v.color = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
    if (!v.s.max_num_seqs) v.s.max_num_seqs = 1; /* one reader */
    gm_status st = gm_load_front(&v.l, &v.s, &err);
    if (!st) st = gm_load_engine(&v.l, &v.s, &err);
    if (!st) {
        struct sigaction a = {.sa_handler = on_interrupt}; /* no SA_RESTART: it also interrupts the prompt */
        sigaction(SIGINT, &a, NULL);
        restart(&v);
        if (v.s.prompt) st = say(&v, v.s.prompt, &err);
        else talk(&v);
    }
    if (st) fprintf(stderr, "glimmer chat: error: %s\n", err.message);
    gm_loaded_fini(&v.l);
    json_decref(v.messages);
    gm_free(v.fresh.data);
    gm_settings_fini(&v.s);
    return st ? 1 : 0;
}
