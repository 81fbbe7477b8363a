/* storm N: runs itself N times by vfork and exec, one after the other, and checks how each has ended. "storm exit CODE"
 * allocates a block and ends with this code. */
#include "common.h"
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc == 3) {
        void *p = malloc(100);
        KEEP(p);
        free(p);
        return atoi(argv[2]);
    }
    int wrong = 0, n = argc > 1 ? atoi(argv[1]) : 0;
    for (int i = 0; i < n; i++) {
        char code[16];
        snprintf(code, sizeof code, "%d", i % 251);
        char *args[] = {argv[0], "exit", code, NULL};
        pid_t pid = vfork();
        if (pid == 0) {
            execve("/proc/self/exe", args, environ);
            _exit(255);
        }
        int status = 0;
        if (pid < 0 || waitpid(pid, &status, 0) != pid) fail("a process is lost");
        wrong += !WIFEXITED(status) || WEXITSTATUS(status) != i % 251;
    }
    say("%d processes, %d wrong\n", n, wrong);
    return wrong != 0;
}
