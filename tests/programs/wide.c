/* A thread whose cache of free blocks (tcache) lies in a chunk that is larger than need be: the allocator found one that it
 * could not split. It then frees 7 blocks of each of 20 sizes, which stay in the cache. */
#include "common.h"
#include <pthread.h>

static int gate[2];

static void *fills(void *arg) {
    char c;
    void *blocks[20][7];
    (void)arg;
    if (read(gate[0], &c, 1) != 1) fail("read");
    for (int size = 0; size < 20; size++)
        for (int i = 0; i < 7; i++) {
            blocks[size][i] = malloc(24 + 16 * (size_t)size);
            KEEP(blocks[size][i]);
        }
    for (int size = 0; size < 20; size++)
        for (int i = 0; i < 7; i++) free(blocks[size][i]);
    say("ready\n");
    pause();
    return NULL;
}

int main(void) {
    pthread_t thread;
    void *wide[8], *between[8];
    if (pipe(gate) || pthread_create(&thread, NULL, fills, NULL)) fail("begin");
    for (int i = 0; i < 8; i++) {
        wide[i] = malloc(0x290);
        between[i] = malloc(24);
        KEEP(wide[i]);
        KEEP(between[i]);
    }
    /* Seven go into this thread's own cache, and the last to where the other thread looks. */
    for (int i = 0; i < 8; i++) free(wide[i]);
    if (write(gate[1], "", 1) != 1) fail("write");
    for (;;) command();
}
