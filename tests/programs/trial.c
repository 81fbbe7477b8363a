/* A program that serves requests from a cache of 20,000 blocks that is full before it prints "ready", one request
 * per millisecond. Its first argument tells how the cache replaces, its second what leaks: "random", "oldest",
 * "before" (the new block is allocated before the old one is freed; sizes differ), "resized" (blocks are
 * reallocated up and down); "none", "own" (3,000 bytes per request in a stack of its own), "same" (a block of the
 * cache's size every fourth request), "shared" (3,000 bytes per request in the cache's own stack). Requests are due
 * by the clock. */
#include "common.h"
#include <time.h>

enum { CACHE = 20000, SIZE = 700, LEAK = 3000 };
static void *cache[CACHE];
static uint32_t x = 12345;

NOINLINE static void *get(size_t size) {
    void *p = malloc(size);
    KEEP(p);
    return p;
}
NOINLINE static void leak_own(size_t size) {
    void *p = malloc(size); /* @leak */
    KEEP(p);
}

static void request(long n, const char *how, const char *what) {
    unsigned at = next_random(&x) % CACHE;
    if (is(how, "random")) {
        free(cache[at]);
        cache[at] = get(SIZE);
    } else if (is(how, "oldest")) {
        free(cache[n % CACHE]);
        cache[n % CACHE] = get(SIZE);
    } else if (is(how, "before")) {
        void *new = get(SIZE - at % 8 * 64);
        free(cache[n % CACHE]);
        cache[n % CACHE] = new;
    } else {
        cache[at] = realloc(cache[at], SIZE + next_random(&x) % 8 * 64);
    }
    if (is(what, "own")) leak_own(LEAK);
    if (is(what, "same") && n % 4 == 0) leak_own(SIZE);
    if (is(what, "shared")) {
        void *p = get(LEAK);
        KEEP(p);
    }
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "random", *what = argc > 2 ? argv[2] : "none";
    struct timespec start, now;
    for (long i = 0; i < CACHE; i++) cache[i] = get(is(how, "before") ? SIZE - i % 8 * 64 : SIZE);
    for (long i = 0; i < CACHE; i++) request(i, how, "none");
    clock_gettime(CLOCK_MONOTONIC, &start);
    say("ready\n");
    for (long n = 0;;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        long ms = (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
        for (; n < ms; n++) request(n, how, what);
        usleep(1000);
    }
}
