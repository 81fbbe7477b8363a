/* "go": allocates, then replaces itself by the same program with another argument, which must work as it would
 * without a recorder. */
#include "common.h"

int main(int argc, char **argv) {
    if (argc > 1) {
        for (uint32_t i = 0; i < 1000; i++) {
            void *p = malloc(i + 1);
            fill(p, i + 1, i);
            check(p, i + 1, i);
            free(p);
        }
        say("second life\n");
        for (;;) {
            if (is(command(), "go")) say("done\n");
        }
    }
    say("ready\n");
    command();
    void *p = malloc(4321); /* @before_exec */
    KEEP(p);
    char *const again[] = {argv[0], "again", NULL};
    execv("/proc/self/exe", again);
    fail("execv");
}
