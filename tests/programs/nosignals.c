/* Handles no signals, so that a static libc contains no code to return from handlers. "go": five blocks of 128
 * bytes. */
#include "common.h"

static void *blocks[64];
static int count;

NOINLINE static void *block(void) {
    void *p = malloc(128); /* @static_block */
    KEEP(p);
    return p;
}

int main(void) {
    say("ready\n");
    for (;;) {
        if (!is(command(), "go")) continue;
        for (volatile int i = 0; i < 5; i++) {
            blocks[count] = block();
            fill(blocks[count], 128, (uint32_t)count);
            count++;
        }
        for (int i = 0; i < count; i++) check(blocks[i], 128, (uint32_t)i);
        say("done\n");
    }
}
