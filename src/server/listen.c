/* Listening sockets: bound before the weights are read, so that a busy port fails at once. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/server.h"

#define BACKLOG 4096

static int bound_port(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n)) return 0;
    if (a.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

gm_status gm_listen_tcp(int *out, const char *host, int port, int *port_out, gm_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE, .ai_family = host ? AF_UNSPEC : AF_INET};
    struct addrinfo *list = NULL;
    char service[16];
    int on = 1, fd = -1, why = 0;
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc) return gm_fail(err, GM_EARG, "cannot resolve --host %s: %s", host ? host : "", gai_strerror(rc));
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            why = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, BACKLOG)) {
            why = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) return gm_fail(err, GM_EIO, "cannot listen on %s port %d: %s", host ? host : "0.0.0.0", port, strerror(why));
    if (port_out) *port_out = bound_port(fd);
    *out = fd;
    return GM_OK;
}

gm_status gm_listen_unix(int *out, const char *path, gm_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    if (strlen(path) >= sizeof a.sun_path) return gm_fail(err, GM_EARG, "--uds: the path is longer than %zu", sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    /* A socket that nobody listens on any more is in the way; anything else is not ours to remove. */
    if (!stat(path, &st) && S_ISSOCK(st.st_mode)) unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return gm_fail(err, GM_EIO, "socket: %s", strerror(errno));
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, BACKLOG)) {
        gm_status s = gm_fail(err, GM_EIO, "cannot listen on %s: %s", path, strerror(errno));
        close(fd);
        return s;
    }
    *out = fd;
    return GM_OK;
}
