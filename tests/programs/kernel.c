/* Makes the kernel allocate what is asked for: "eventfds N" opens N event descriptors, "pipes N" opens N pipes that hold
 * 64 full pages each, "close" closes all of them. */
#include "common.h"
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
        } else if (is(line, "close")) {
            while (count > 0) close(open_fds[--count]);
        } else {
            fail("no such command: %s", line);
        }
        say("done\n");
    }
}
