/* Adopts orphans, as a container's first process does. Commands: "run COMMAND", by a shell, answered with its exit
 * code; "children", which waits for those that have ended and says how many that were, and whether more live. */
#include "common.h"
#include <sys/prctl.h>
#include <sys/wait.h>

int main(void) {
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) fail("prctl");
    say("ready\n");
    for (;;) {
        const char *c = command();
        if (strncmp(c, "run ", 4) == 0) {
            int status = system(c + 4);
            say("done %d\n", WEXITSTATUS(status));
        } else {
            int ended = 0, r;
            while ((r = waitpid(-1, NULL, WNOHANG)) > 0) ended++;
            say("done %d ended, %s\n", ended, r == 0 ? "more" : "no more");
        }
    }
}
