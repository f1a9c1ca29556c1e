#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/str.h"

static _Atomic int level_min = GM_LOG_INFO;
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*sink_fn)(void *, gm_log_level, const char *);
static void *sink_user;

void gm_log_set_level(gm_log_level level)
{
    atomic_store(&level_min, (int)level);
}

bool gm_log_enabled(gm_log_level level)
{
    return (int)level >= atomic_load(&level_min);
}

void gm_log_set_sink(void (*sink)(void *user, gm_log_level level, const char *line), void *user)
{
    pthread_mutex_lock(&sink_lock);
    sink_fn = sink;
    sink_user = user;
    pthread_mutex_unlock(&sink_lock);
}

static void write_all(const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(STDERR_FILENO, p, n);
        if (k <= 0) return; /* nobody reads the log: nothing to do about it */
        p += k;
        n -= (size_t)k;
    }
}

void gm_log_write(gm_log_level level, const char *file, int line, const char *fmt, ...)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    if (!gm_log_enabled(level)) return;
    gm_str s = {0};
    struct timespec ts;
    struct tm tm;
    char when[32];
    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);
    strftime(when, sizeof when, "%m-%d %H:%M:%S", &tm);
    const char *base = strrchr(file, '/');
    gm_str_printf(&s, "%s %s [%s:%d] ", names[level], when, base ? base + 1 : file, line);
    va_list ap;
    va_start(ap, fmt);
    gm_str_vprintf(&s, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&sink_lock);
    if (sink_fn) {
        sink_fn(sink_user, level, gm_str_c(&s));
    } else {
        gm_str_putc(&s, '\n');
        write_all(s.data, s.len);
    }
    pthread_mutex_unlock(&sink_lock);
    gm_str_fini(&s);
}
