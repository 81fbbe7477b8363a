/* "alloc N": N blocks of 128 bytes, kept. "free N": frees the N oldest. "handler": installs a
 * handler of the program's own for SIGUSR1; "handled" prints how often it ran. */
#include "common.h"
#include <signal.h>

static void *blocks[65536];
static int first, last;
static volatile sig_atomic_t handled;

NOINLINE static void *toggled_block(void) {
    void *p = malloc(128); /* @toggled_block */
    KEEP(p);
    return p;
}
static void on_usr1(int sig) {
    (void)sig;
    handled = handled + 1;
}

int main(int argc, char **argv) {
    (void)argv;
    struct sigaction action = {.sa_handler = on_usr1, .sa_flags = SA_RESTART};
    if (argc > 1) sigaction(SIGUSR1, &action, NULL);
    say("ready\n");
    for (;;) {
        const char *word = command();
        int n;
        if (sscanf(word, "alloc %d", &n) == 1) {
            while (n--) {
                blocks[last] = toggled_block();
                fill(blocks[last], 128, (uint32_t)last);
                last++;
            }
            say("done\n");
        } else if (sscanf(word, "free %d", &n) == 1) {
            while (n--) {
                check(blocks[first], 128, (uint32_t)first);
                free(blocks[first++]);
            }
            if (first == last) first = last = 0;
            say("done\n");
        } else if (is(word, "handled")) {
            say("done %d\n", (int)handled);
        }
    }
}
