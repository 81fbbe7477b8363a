/* Makes the kernel allocate what is asked for: "eventfds N" opens N event descriptors, "pipes N" opens N pipes that hold
 * 64 full pages each, "close" closes all of them. "churn N" opens and closes N pipes, and sends
 * as many datagrams to itself: most of what that takes is freed by interrupts, a while later. */
#include "common.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

enum { MOST = 20000, PAGES = 64 };

static int open_fds[2 * MOST];
static int count;

static void keep(int fd) {
    if (fd < 0 || count == 2 * MOST) fail("no descriptor: %s", strerror(errno));
    open_fds[count++] = fd;
}

static void pipes(int n) {
    static char page[4096];
    long size = sysconf(_SC_PAGESIZE);
    for (int i = 0; i < n; i++) {
        int ends[2];
        if (pipe(ends)) fail("pipe: %s", strerror(errno));
        if (fcntl(ends[1], F_SETPIPE_SZ, PAGES * size) < 0) fail("F_SETPIPE_SZ: %s", strerror(errno));
        for (long left = PAGES * size; left > 0; left -= (long)sizeof page) {
            if (write(ends[1], page, sizeof page) != (long)sizeof page) fail("write");
        }
        keep(ends[0]);
        keep(ends[1]);
    }
}

static void churn(int n) {
    static char data[600];
    struct sockaddr_in self = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof self;
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&self, len) || getsockname(s, (struct sockaddr *)&self, &len)) fail("socket");
    for (int i = 0; i < n; i++) {
        int ends[2];
        if (pipe(ends)) fail("pipe: %s", strerror(errno));
        if (sendto(s, data, sizeof data, 0, (struct sockaddr *)&self, len) != (long)sizeof data) fail("sendto");
        if (recv(s, data, sizeof data, 0) != (long)sizeof data) fail("recv");
        close(ends[0]);
        close(ends[1]);
    }
    close(s);
}

int main(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    say("ready\n");
    for (;;) {
        const char *line = command();
        int n = 0;
        if (sscanf(line, "eventfds %d", &n) == 1) {
            for (int i = 0; i < n; i++) keep(eventfd(0, 0));
        } else if (sscanf(line, "pipes %d", &n) == 1) {
            pipes(n);
        } else if (sscanf(line, "churn %d", &n) == 1) {
            churn(n);
        } else if (is(line, "close")) {
            while (count > 0) close(open_fds[--count]);
        } else {
            fail("no such command: %s", line);
        }
        say("done\n");
    }
}
