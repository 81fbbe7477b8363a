/* A thread whose cache of free blocks (tcache) lies in a chunk that is larger than need be: the allocator found one that it
 * could not split. It then frees 7 blocks of each of 20 sizes, which stay in the cache. */
#include "common.h"
#include <pthread.h>

/* One step of sizes more than the cache has (struct tcache_perthread_struct): 64 numbers of two bytes, and 64 lists. */
#define WIDE (64 * (2 + sizeof(void *)) + 2 * sizeof(size_t))

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
        wide[i] = malloc(WIDE);
        between[i] = malloc(24);
        KEEP(wide[i]);
        KEEP(between[i]);
    }
    /* Seven go into this thread's own cache, and the last to where the other thread looks. */
    for (int i = 0; i < 8; i++) free(wide[i]);
    if (write(gate[1], "", 1) != 1) fail("write");
    for (;;) command();
}
