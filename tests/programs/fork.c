/* Children of every kind: fork with allocations in the child, fork and exec, posix_spawn, vfork,
 * system, fork and a signal that ends the child. Each child's answer is checked; the parent's own
 * allocations are exactly ten of 7,000 bytes per "go". */
#include "common.h"
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

NOINLINE static void parent_block(void) {
    void *p = malloc(7000); /* @parent_block */
    KEEP(p);
}
NOINLINE static void child_block(uint32_t seed) {
    void *p = malloc(9000); /* @child_block */
    KEEP(p);
    fill(p, 9000, seed);
    check(p, 9000, seed);
    free(p);
}
static void reap(pid_t pid, int wanted, const char *what) {
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) fail("%s: no child", what);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted) fail("%s: status %x", what, status);
}

int main(void) {
    char *const seven[] = {"sh", "-c", "exit 7", NULL};
    say("ready\n");
    for (;;) {
        if (!is(command(), "go")) continue;
        for (volatile int i = 0; i < 10; i++) {
            parent_block();
            pid_t pid = fork();
            if (pid == 0) {
                for (uint32_t k = 0; k < 1000; k++) child_block(k);
                _exit(5);
            }
            reap(pid, 5, "fork");
            pid = fork();
            if (pid == 0) {
                child_block(1);
                execv("/bin/sh", seven);
                _exit(1);
            }
            reap(pid, 7, "fork and exec");
            if (posix_spawn(&pid, "/bin/sh", NULL, NULL, seven, environ)) fail("posix_spawn");
            reap(pid, 7, "posix_spawn");
            pid = vfork();
            if (pid == 0) {
                execv("/bin/sh", seven);
                _exit(1);
            }
            reap(pid, 7, "vfork");
            pid = fork();
            while (pid == 0) pause();
            int status;
            if (kill(pid, SIGUSR1) || waitpid(pid, &status, 0) != pid) fail("fork and signal");
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGUSR1) fail("signal: %x", status);
            if (system("exit 3") != 3 << 8) fail("system");
        }
        say("done\n");
    }
}
