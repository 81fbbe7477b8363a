/* "fork": a child that allocates a little and then waits; "done PID". It ends with its parent. */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>

int main(void) {
    say("ready\n");
    for (;;) {
        if (!is(command(), "fork")) continue;
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (int i = 1; i < 100; i++) free(malloc((size_t)i * 50));
            for (;;) pause();
        }
        say("done %d\n", (int)pid);
    }
}
