/* Allocates in batches on demand: most blocks end at once, a few stay, and some of those are freed much later by another
 * thread. A thread that allocates but once waits all the time. The program counts everything. */
#include "common.h"
#include "counted.h"
#include <pthread.h>

enum { KEPT = 1 << 16, EACH = 500, LATE = 3000 };
static void *kept[KEPT];
static size_t nkept, nfreed;
static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;


NOINLINE static void long_lived(void) {
    void *p = malloc(300); /* @long */
    took(300);
    kept[nkept++ % KEPT] = p;
}

NOINLINE static void short_lived(void) {
    void *p = malloc(64); /* @short */
    took(64);
    KEEP(p);
    void *q = malloc(200);
    took(200);
    KEEP(q);
    p = realloc(p, 128); /* @again */
    resized(64, 128);
    KEEP(p);
    free(q);
    gave(200);
    free(p);
    gave(128);
}

NOINLINE static void lost(void) {
    void *p = malloc(500); /* @lost */
    took(500);
    KEEP(p);
}

static void *free_late(void *nothing) {
    for (int i = 0; i < 10 && nfreed < nkept; i++) {
        free(kept[nfreed++ % KEPT]);
        gave(300);
    }
    return nothing;
}

static void *wait_for_ever(void *nothing) {
    void *p = malloc(77); /* @waits */
    took(77);
    KEEP(p);
    pthread_mutex_unlock(&once);
    for (;;) pause();
    return nothing;
}

int main(void) {
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "waits")) {
            pthread_t id;
            pthread_mutex_lock(&once);
            if (pthread_create(&id, NULL, wait_for_ever, NULL)) fail("pthread_create");
            pthread_mutex_lock(&once);
            pthread_mutex_unlock(&once);
        } else if (is(line, "high")) {
            void *p = malloc(1 << 20);
            took(1 << 20);
            KEEP(p);
            free(p);
            gave(1 << 20);
        } else if (is(line, "lose")) {
            for (int i = 0; i < 40; i++) lost();
        } else if (is(line, "batch")) {
            for (int i = 0; i < 10000; i++) {
                short_lived();
                if (i % EACH == 0) long_lived();
            }
            if (nkept > LATE / 10) {
                pthread_t id;
                if (pthread_create(&id, NULL, free_late, NULL)) fail("pthread_create");
                pthread_join(id, NULL);
            }
        }
        say("done %zu %zu %zu %zu %zu %zu %zu %zu\n", allocations, frees, reallocations, allocated, live, live_blocks, peak,
            nkept);
    }
}
