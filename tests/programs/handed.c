/* Threads that pass their blocks to each other as fast as they can, by lock-free queues: each block is freed by
 * another thread than has allocated it. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { THREADS = 4, PLACES = 64 };
static uint32_t *_Atomic queues[THREADS][PLACES];
static int rounds;

NOINLINE static uint32_t *handed_block(size_t size) {
    uint32_t *p = malloc(size); /* @handed_block */
    KEEP(p);
    return p;
}

static void *work(void *argument) {
    int me = (int)(intptr_t)argument;
    uint32_t *_Atomic *from = queues[me], *_Atomic *to = queues[(me + 1) % THREADS];
    uint32_t random = 2463534242u + (uint32_t)me * 7919u;
    for (int given = 0, taken = 0; given < rounds || taken < rounds;) {
        int idle = 1;
        if (given < rounds && !atomic_load_explicit(&to[given % PLACES], memory_order_acquire)) {
            size_t size = 32 + next_random(&random) % 4 * 16;
            uint32_t *block = handed_block(size);
            block[0] = (uint32_t)size;
            block[1] = ~(uint32_t)size;
            atomic_store_explicit(&to[given++ % PLACES], block, memory_order_release);
            idle = 0;
        }
        uint32_t *block = atomic_load_explicit(&from[taken % PLACES], memory_order_acquire);
        if (block) {
            if (block[0] != ~block[1]) fail("a block of %u says %u", block[0], ~block[1]);
            free(block);
            atomic_store_explicit(&from[taken++ % PLACES], NULL, memory_order_release);
            idle = 0;
        }
        if (idle) sched_yield();
    }
    return NULL;
}

int main(void) {
    say("ready\n");
    while (sscanf(command(), "go %d", &rounds) == 1) {
        pthread_t ids[THREADS];
        for (long t = 0; t < THREADS; t++) {
            if (pthread_create(&ids[t], NULL, work, (void *)t)) fail("pthread_create");
        }
        for (int t = 0; t < THREADS; t++) pthread_join(ids[t], NULL);
        say("done %d\n", THREADS * rounds);
    }
}
