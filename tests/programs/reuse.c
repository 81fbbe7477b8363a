/* Address reuse across threads: one thread frees a block, the other immediately gets the same
 * address, in strict turns that the threads pass to each other without a lock. With arenas limited
 * to one and no thread cache (set by the test), nearly every turn reuses an address. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static atomic_int turn;
static void *_Atomic block;
static atomic_int reused;
static int rounds;

NOINLINE static void *passed_block(void) {
    void *p = malloc(5000); /* @passed_block */
    KEEP(p);
    return p;
}

static void *player(void *argument) {
    int me = (int)(intptr_t)argument;
    for (int i = 0; i < rounds; i++) {
        /* With one processor the other thread can't end its turn meanwhile. */
        for (int spins = 0; atomic_load_explicit(&turn, memory_order_acquire) != me; spins++) {
            if (spins > 1000) sched_yield();
        }
        void *old = atomic_load(&block);
        if (old) check(old, 64, (uint32_t)(1 - me));
        free(old);
        void *p = passed_block();
        if (p == old) atomic_fetch_add(&reused, 1);
        fill(p, 64, (uint32_t)me);
        atomic_store(&block, p);
        atomic_store_explicit(&turn, 1 - me, memory_order_release);
    }
    return NULL;
}

int main(void) {
    say("ready\n");
    while (sscanf(command(), "go %d", &rounds) == 1) {
        pthread_t other;
        if (pthread_create(&other, NULL, player, (void *)1)) fail("pthread_create");
        player((void *)0);
        pthread_join(other, NULL);
        say("done reused=%d\n", atomic_load(&reused));
    }
}
