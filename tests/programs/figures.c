/* A program whose figures are known: 100 small blocks of which 46 are freed, in another order than they were
 * allocated; 10 large ones by another thread, and as many more as its argument says; one block that is reallocated
 * five times; 50 temporary ones. */
#include "common.h"
#include <pthread.h>

static void *blocks[100];
static long more;

NOINLINE static void small(void) {
    for (int i = 0; i < 100; i++) {
        blocks[i] = malloc(24); /* @small */
        KEEP(blocks[i]);
    }
    for (int i = 0; i < 40; i++) free(blocks[(i * 7) % 40]);
}
NOINLINE static void *large(void *unused) {
    (void)unused;
    for (long i = 0; i < 10 + more; i++) {
        void *p = malloc(5000); /* @large */
        KEEP(p);
    }
    return NULL;
}
NOINLINE static void moved(void) {
    void *p = malloc(20); /* @moved */
    free(blocks[40]); /* so that no block is temporary for being reallocated at once */
    int turn = 0;
    for (size_t size = 40; size <= 640; size *= 2) {
        p = realloc(p, size);
        KEEP(p);
        free(blocks[41 + turn++]);
    }
}
NOINLINE static void brief(void) {
    for (int i = 0; i < 50; i++) {
        void *p = malloc(333); /* @brief */
        KEEP(p);
        free(p);
    }
}

int main(int argc, char **argv) {
    more = argc > 1 ? atol(argv[1]) : 0;
    small();
    pthread_t t;
    if (pthread_create(&t, NULL, large, NULL)) return 1;
    pthread_join(t, NULL);
    moved();
    brief();
    return 0;
}
