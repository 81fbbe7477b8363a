/* Sparsely used pages: 4,000 blocks of 1,000 bytes by turns, of which only every 40th is kept (with pages larger
 * than 4 KiB as many more), and by another function than those that are freed; then 200 blocks of 4,000 bytes that
 * are all kept, and 300 from before. */
#include "common.h"
#include <unistd.h>

static void *all[64000], *dense[200], *older[300];

NOINLINE static void *keeper(void) {
    void *p = malloc(1000); /* @keeper */
    KEEP(p);
    memset(p, 1, 1000);
    return p;
}
NOINLINE static void *passing(void) {
    void *p = malloc(1000); /* @passing */
    KEEP(p);
    memset(p, 1, 1000);
    return p;
}
NOINLINE static void *filler(void) {
    void *p = malloc(4000); /* @filler */
    KEEP(p);
    memset(p, 1, 4000);
    return p;
}

int main(void) {
    for (int i = 0; i < 300; i++) {
        older[i] = malloc(4000);
        memset(older[i], 1, 4000);
    }
    say("ready\n");
    command();
    int step = sysconf(_SC_PAGESIZE) / 1024 * 10, count = 100 * step;
    for (int i = 0; i < count; i++) all[i] = i % step ? passing() : keeper();
    for (int i = 0; i < 200; i++) dense[i] = filler();
    for (int i = 0; i < count; i++) {
        if (i % step) free(all[i]);
    }
    say("done\n");
    for (;;) command();
}
