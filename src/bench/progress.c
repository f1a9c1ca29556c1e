#include "bench/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int clock_text(char *out, size_t cap, double s)
{
    int t = (int)s;
    return t >= 3600 ? snprintf(out, cap, "%d:%02d:%02d", t / 3600, t / 60 % 60, t % 60)
                     : snprintf(out, cap, "%02d:%02d", t / 60, t % 60);
}

void gm_progress_show(void *user, size_t done, size_t n, double seconds)
{
    gm_progress *p = user;
    char past[24], left[24] = "?", tail[96], bar[512] = "";
    struct winsize w = {0};
    int columns = !ioctl(STDERR_FILENO, TIOCGWINSZ, &w) && w.ws_col > 20 ? w.ws_col : 80;
    double rate = seconds > 0 ? (double)done / seconds : 0;
    if (!p->on) return;
    clock_text(past, sizeof past, seconds);
    if (rate > 0) clock_text(left, sizeof left, (double)(n - done) / rate);
    int used = snprintf(tail, sizeof tail, "| %zu/%zu [%s<%s, %.2fit/s]", done, n, past, left, rate);
    int room = columns - used - 7;
    if (room > 150) room = 150;
    int eighths = room > 0 && n ? (int)((double)room * 8 * (double)done / (double)n) : 0;
    static const char *const blocks[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
    size_t at = 0;
    for (int i = 0; i < room; i++) {
        int k = eighths - 8 * i;
        const char *b = blocks[k <= 0 ? 0 : k > 8 ? 8 : k];
        memcpy(bar + at, b, strlen(b) + 1);
        at += strlen(b);
    }
    fprintf(stderr, "\r%3d%%|%s%s", n ? (int)(100 * done / n) : 100, bar, tail);
    fflush(stderr);
    p->drawn = true;
}

void gm_progress_end(gm_progress *p)
{
    if (p->drawn) fputc('\n', stderr);
    p->drawn = false;
}
