/* Temporary allocations: 321 blocks freed by the next event of their thread, and some that are not temporary: two
 * that overlap in time, and one that is kept. */
#include "common.h"

NOINLINE static void short_lived(void) {
    for (int i = 0; i < 321; i++) {
        void *p = malloc(40); /* @short_lived */
        KEEP(p);
        free(p);
    }
}
NOINLINE static void overlapping(void) {
    for (int i = 0; i < 10; i++) {
        void *a = malloc(50); /* @overlapping_a */
        KEEP(a);
        void *b = malloc(60); /* @overlapping_b */
        KEEP(b);
        free(a);
        free(b);
    }
}
NOINLINE static void kept_block(void) {
    void *p = malloc(70); /* @kept_block */
    KEEP(p);
}

int main(void) {
    say("ready\n");
    for (;;) {
        if (!is(command(), "go")) continue;
        short_lived();
        overlapping();
        kept_block();
        say("done\n");
    }
}
