/* Blocks from before the attach that stay, and threads that allocate and free at full speed meanwhile: each fills its
 * blocks, frees them all and begins again, so that what is live changes by megabytes within milliseconds. */
#include "common.h"
#include <malloc.h>
#include <pthread.h>

enum { OLD = 40000, BLOCKS = 8000, THREADS = 3 };
static void *old[OLD];
static pthread_barrier_t start;

static void *block(size_t size) {
    char *p = malloc(size);
    KEEP(p);
    memset(p, 1, size < 64 ? size : 64);
    return p;
}
static void *churn(void *arg) {
    static __thread void *all[BLOCKS];
    uint32_t seed = (uint32_t)(uintptr_t)arg;
    pthread_barrier_wait(&start);
    for (;;) {
        int n = 1 + (int)(next_random(&seed) % BLOCKS);
        for (int i = 0; i < n; i++) all[i] = block(16 + next_random(&seed) % 1500);
        for (int i = 0; i < n; i++) free(all[i]);
    }
    return 0;
}
int main(void) {
    uint32_t seed = 3;
    pthread_barrier_init(&start, 0, THREADS + 1);
    for (int i = 0; i < OLD; i++) old[i] = block(16 + next_random(&seed) % 300);
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_t t;
        if (pthread_create(&t, 0, churn, (void *)(i + 1))) fail("pthread_create");
    }
    say("kept %zu\n", mallinfo2().uordblks);
    command();
    pthread_barrier_wait(&start);
    say("done\n");
    for (;;) command();
}
