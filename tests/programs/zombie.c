/* Has a child that is dead and not waited for; prints its PID. */
#include "common.h"
#include <sys/wait.h>

int main(void) {
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    siginfo_t info;
    waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
    say("ready %d\n", (int)pid);
    for (;;) command();
}
