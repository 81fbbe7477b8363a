/* Allocates blocks of 32 bytes for ever and prints, after every 1,000, how many there are; a limit keeps it below 50
 * MB. Used for recordings of processes that are killed. */
#include "common.h"

NOINLINE static void steady_block(void) {
    void *p = malloc(32); /* @steady_block */
    KEEP(p);
}

int main(void) {
    say("ready\n");
    command();
    for (long n = 1; n <= 1000000; n++) {
        steady_block();
        if (n % 1000 == 0) say("count %ld\n", n);
    }
    command();
}
