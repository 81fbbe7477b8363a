/* "fork": makes a child that allocates a little and then waits; prints "done PID". The child ends with its parent,
 * with "stay" after a minute. At SIGUSR2 it allocates some more and then renames itself to "works". */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>

static volatile sig_atomic_t asked;

static void ask(int signal) {
    (void)signal;
    asked = 1;
}

int main(int argc, char **argv) {
    (void)argv;
    signal(SIGUSR2, ask);
    say("ready\n");
    for (;;) {
        if (!is(command(), "fork")) continue;
        pid_t pid = fork();
        if (pid == 0) {
            if (argc > 1) alarm(60);
            else prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (int i = 1; i < 100; i++) free(malloc((size_t)i * 50));
            for (;;) {
                pause();
                if (!asked) continue;
                for (int i = 1; i < 10000; i++) free(malloc((size_t)(i % 300) * 50));
                prctl(PR_SET_NAME, "works");
            }
        }
        say("done %d\n", (int)pid);
    }
}
