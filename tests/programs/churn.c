/* Threads that are created and end all the time, at most eight at once, some of them detached; each
 * allocates, passes half of its blocks on to be freed by another, and checks every byte. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

enum { AT_ONCE = 8, BLOCKS = 40, SHELF = 512 };
struct block { size_t size; uint32_t seed; unsigned char bytes[]; };
static atomic_int stop, running;
static atomic_ulong threads;
static _Atomic(struct block *) shelf[SHELF];

static void end_of(struct block *b) {
    if (!b) return;
    check(b->bytes, b->size, b->seed);
    free(b);
}

static void *work(void *argument) {
    uint32_t random = (uint32_t)(uintptr_t)argument * 2654435761u | 1;
    for (int i = 0; i < BLOCKS; i++) {
        size_t size = next_random(&random) % 700;
        struct block *b = malloc(sizeof *b + size);
        b->size = size;
        b->seed = random;
        fill(b->bytes, size, random);
        if (i % 2) {
            b = atomic_exchange(&shelf[next_random(&random) % SHELF], b);
        }
        end_of(b);
    }
    atomic_fetch_add(&threads, 1);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

/* A thread makes the others, so that the first one can read commands. */
static void *make(void *nothing) {
    pthread_t joinable[AT_ONCE];
    int made = 0;
    for (uintptr_t n = 1; !atomic_load(&stop); n++) {
        pthread_t id;
        atomic_fetch_add(&running, 1);
        if (pthread_create(&id, NULL, work, (void *)n)) fail("pthread_create");
        if (n % 3 == 0) {
            pthread_detach(id);
        } else {
            joinable[made++] = id;
        }
        if (made == AT_ONCE || atomic_load(&running) >= AT_ONCE) {
            while (made > 0) pthread_join(joinable[--made], NULL);
            while (atomic_load(&running) >= AT_ONCE) usleep(100);
        }
    }
    while (made > 0) pthread_join(joinable[--made], NULL);
    while (atomic_load(&running) > 0) usleep(100);
    return nothing;
}

int main(void) {
    pthread_t maker;
    if (pthread_create(&maker, NULL, make, NULL)) fail("pthread_create");
    say("ready\n");
    for (;;) {
        if (!is(command(), "stop")) continue;
        atomic_store(&stop, 1);
        pthread_join(maker, NULL);
        for (int i = 0; i < SHELF; i++) end_of(atomic_load(&shelf[i]));
        say("done OK %lu threads\n", atomic_load(&threads));
    }
}
