/* Stops all threads of a process and releases them, with nothing in between: the lower bound of any attach. Prints
 * the ms from the first interrupt to the last detach. Usage: stop PID */
#include "../programs/common.h"
#include <dirent.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    static int tids[4096];
    int n = 0;
    char path[64];
    if (argc < 2) fail("usage: stop PID");
    snprintf(path, sizeof path, "/proc/%s/task", argv[1]);
    DIR *dir = opendir(path);
    if (!dir) fail("%s", path);
    for (struct dirent *e; (e = readdir(dir)) && n < 4096;) {
        if (atoi(e->d_name) > 0) tids[n++] = atoi(e->d_name);
    }
    for (int i = 0; i < n; i++) {
        if (ptrace(PTRACE_SEIZE, tids[i], 0, 0)) fail("PTRACE_SEIZE: %s", strerror(errno));
    }
    double start = now_ms();
    for (int i = 0; i < n; i++) ptrace(PTRACE_INTERRUPT, tids[i], 0, 0);
    for (int i = 0; i < n; i++) {
        int status;
        if (waitpid(tids[i], &status, __WALL) != tids[i]) fail("waitpid: %s", strerror(errno));
    }
    for (int i = 0; i < n; i++) ptrace(PTRACE_DETACH, tids[i], 0, 0);
    say("%.3f\n", now_ms() - start);
    return 0;
}
