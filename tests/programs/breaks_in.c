/* Traces the process named by its argument as soon as prof has mapped something into it, or with "later" as soon as
 * a tracer has come and gone; holds the process until told to quit. */
#include "common.h"
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

static int has_ring(const char *maps) {
    static char text[1 << 16];
    int fd = open(maps, O_RDONLY), found = 0;
    ssize_t n;
    while (!found && (n = read(fd, text, sizeof text - 1)) > 0) {
        text[n] = 0;
        found = strstr(text, "prof-ring") != NULL;
    }
    close(fd);
    return found;
}

static int has_descriptor(const char *pid) {
    for (int fd = 3; fd < 12; fd++) {
        char path[64], link[256];
        snprintf(path, sizeof path, "/proc/%s/fd/%d", pid, fd);
        ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        if (strstr(link, "prof-ring")) return 1;
    }
    return 0;
}

static int is_traced(const char *pid) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%s/status", pid);
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *line = strstr(text, "TracerPid:");
    return line && atoi(line + 10) != 0;
}

int main(int argc, char **argv) {
    if (argc < 2) fail("usage: breaks_in PID");
    char maps[64];
    snprintf(maps, sizeof maps, "/proc/%s/maps", argv[1]);
    say("ready\n");
    if (argc > 2) {
        while (!is_traced(argv[1])) {
        }
    } else {
        while (!has_descriptor(argv[1]) && !has_ring(maps)) {
        }
    }
    /* prof releases the thread between two stops. */
    while (ptrace(PTRACE_SEIZE, atoi(argv[1]), 0, 0)) {
        if (errno != EPERM) fail("PTRACE_SEIZE: %s", strerror(errno));
    }
    say("held\n");
    for (;;) command();
}
