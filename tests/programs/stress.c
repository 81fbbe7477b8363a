/* Eight threads allocate, resize, check and free blocks that carry a checksum in every byte, as fast as they can,
 * until told to stop. Any damage ends the program with FAILED. With an argument, that many more threads only
 * wait. With a second, that many threads work. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { THREADS = 8, SLOTS = 64 };
static atomic_int stop;
static atomic_ulong operations;

static void *work(void *argument) {
    uint32_t random = 2463534242u + (uint32_t)(uintptr_t)argument * 7919u;
    struct { void *p; size_t size; uint32_t seed; } slots[SLOTS] = {0};
    unsigned long n = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint32_t r = next_random(&random);
        int i = (int)(r % SLOTS);
        size_t size = (r >> 8) % 600 + 1;
        if (slots[i].p) check(slots[i].p, slots[i].size, slots[i].seed);
        if (slots[i].p && (r >> 28) < 5) {
            size_t same = size < slots[i].size ? size : slots[i].size;
            slots[i].p = realloc(slots[i].p, size);
            check(slots[i].p, same, slots[i].seed);
        } else {
            free(slots[i].p);
            slots[i].p = (r >> 28) < 8 ? calloc(1, size) : malloc(size);
        }
        slots[i].size = size;
        slots[i].seed = r;
        fill(slots[i].p, size, r);
        if ((++n & 1023) == 0) atomic_fetch_add(&operations, 1024);
    }
    for (int i = 0; i < SLOTS; i++) free(slots[i].p);
    return NULL;
}

static void *waits(void *argument) {
    for (;;) pause();
    return argument;
}

int main(int argc, char **argv) {
    pthread_t ids[THREADS];
    long workers = argc > 2 ? atoi(argv[2]) : THREADS;
    if (workers < 1 || workers > THREADS) fail("number of threads");
    for (int t = argc > 1 ? atoi(argv[1]) : 0; t > 0; t--) {
        if (pthread_create(&ids[0], NULL, waits, NULL)) fail("pthread_create");
    }
    for (long t = 0; t < workers; t++) {
        if (pthread_create(&ids[t], NULL, work, (void *)(t + 1))) fail("pthread_create");
    }
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (is(word, "operations")) say("done %lu\n", atomic_load(&operations));
        if (is(word, "stop")) {
            atomic_store(&stop, 1);
            for (long t = 0; t < workers; t++) pthread_join(ids[t], NULL);
            say("done OK\n");
        }
    }
}
