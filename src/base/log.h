/* Log lines on stderr in the form that vLLM's users know:
 *   INFO 11-30 10:52:40 [module.c:123] message key=value
 * One call is one line and is atomic between threads. Only the outer layers log (engine, server, cmd); library
 * code reports by status. */
#ifndef GM_BASE_LOG_H
#define GM_BASE_LOG_H

#include "base/status.h"

typedef enum gm_log_level { GM_LOG_DEBUG, GM_LOG_INFO, GM_LOG_WARNING, GM_LOG_ERROR } gm_log_level;

void gm_log_set_level(gm_log_level level); /* default: info */
bool gm_log_enabled(gm_log_level level);
/* Lines go to this function instead of stderr (tests); NULL restores stderr. The line has no newline. */
void gm_log_set_sink(void (*sink)(void *user, gm_log_level level, const char *line), void *user);

void gm_log_write(gm_log_level level, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#define gm_debug(...) gm_log_write(GM_LOG_DEBUG, __FILE__, __LINE__, __VA_ARGS__)
#define gm_info(...) gm_log_write(GM_LOG_INFO, __FILE__, __LINE__, __VA_ARGS__)
#define gm_warn(...) gm_log_write(GM_LOG_WARNING, __FILE__, __LINE__, __VA_ARGS__)
#define gm_err(...) gm_log_write(GM_LOG_ERROR, __FILE__, __LINE__, __VA_ARGS__)

#endif
