/* Threads that start and end while recording; half of their blocks are freed by another thread than allocated them.
 * "go N M": N threads, at most 16 at a time, M blocks each. "storm": the same without any other allocation in
 * between, for address reuse. */
#include "common.h"
#include <pthread.h>

enum { MAX_BLOCKS = 4096, AT_ONCE = 16 };
struct job {
    uint32_t seed;
    int blocks;
    void **mine;
};
static void *slots[AT_ONCE][MAX_BLOCKS];

NOINLINE static void *thread_block(size_t size) {
    void *p = malloc(size); /* @thread_block */
    KEEP(p);
    return p;
}
static size_t size_of(int i) { return 24 + (size_t)(i % 32) * 16; }

static void *work(void *argument) {
    struct job *job = argument;
    for (int i = 0; i < job->blocks; i++) {
        job->mine[i] = thread_block(size_of(i));
        fill(job->mine[i], size_of(i), job->seed + (uint32_t)i);
        if (i % 2) {
            check(job->mine[i - 1], size_of(i - 1), job->seed + (uint32_t)i - 1);
            free(job->mine[i - 1]);
        }
    }
    return NULL;
}

int main(void) {
    say("ready\n");
    for (;;) {
        int threads, blocks;
        if (sscanf(command(), "go %d %d", &threads, &blocks) != 2 || blocks > MAX_BLOCKS) continue;
        for (int from = 0; from < threads; from += AT_ONCE) {
            pthread_t ids[AT_ONCE];
            struct job jobs[AT_ONCE];
            int now = threads - from < AT_ONCE ? threads - from : AT_ONCE;
            for (int t = 0; t < now; t++) {
                jobs[t] = (struct job){(uint32_t)(from + t) * 977u, blocks, slots[t]};
                if (pthread_create(&ids[t], NULL, work, &jobs[t])) fail("pthread_create");
            }
            for (int t = 0; t < now; t++) pthread_join(ids[t], NULL);
            /* frees what the threads left, except each thread's last block */
            for (int t = 0; t < now; t++) {
                for (int i = 1; i < blocks - 1; i += 2) {
                    check(slots[t][i], size_of(i), jobs[t].seed + (uint32_t)i);
                    free(slots[t][i]);
                }
            }
        }
        say("done\n");
    }
}
