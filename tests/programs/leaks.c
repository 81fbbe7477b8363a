/* A program with the behaviours that a verdict on leaks must distinguish: a leak that grows all the time; one
 * that is freed only at the end; a bounded cache; blocks of which most are temporary and some are kept; blocks
 * that are all temporary; a table that is allocated once. Runs for as many milliseconds as its argument says.
 * Work is due by the clock, so that the program catches up after the machine was slow, and growth stays
 * linear. */
#include "common.h"
#include <time.h>

#define NODE(name, bytes)                                                     \
    struct name {                                                             \
        struct name *next;                                                    \
        char data[bytes];                                                     \
    }
NODE(kept, 1000) *at_end;
enum { CACHE = 64, TABLE = 32 };
static void *cache[CACHE], *table[TABLE];

NOINLINE static void linear(void) {
    void *p = malloc(700); /* @linear */
    KEEP(p);
}
NOINLINE static void freed_at_the_end(void) {
    struct kept *k = malloc(sizeof *k); /* @freed_at_the_end */
    k->next = at_end;
    at_end = k;
}
NOINLINE static void bounded(long n) {
    void **slot = &cache[n % CACHE];
    free(*slot);
    *slot = malloc(900); /* @bounded */
}
NOINLINE static void both(long n) {
    for (int i = 0; i < 4; i++) {
        void *p = malloc(300); /* @both */
        KEEP(p);
        if (i != 0 || n % 3 != 0) free(p);
    }
}
NOINLINE static void temporary(void) {
    void *p = malloc(5000); /* @temporary */
    KEEP(p);
    free(p);
}
NOINLINE static void fixed(void) {
    for (int i = 0; i < TABLE; i++) {
        table[i] = malloc(2000); /* @fixed */
        KEEP(table[i]);
    }
}

int main(int argc, char **argv) {
    long runs = argc > 1 ? atol(argv[1]) : 4000, n = 0;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    fixed();
    for (;;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        long ms = (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
        if (ms >= runs) break;
        for (; n < ms / 4; n++) { /* one turn for every four milliseconds that have passed */
            linear();
            freed_at_the_end();
            bounded(n);
            both(n);
            temporary();
        }
        usleep(1000);
    }
    while (at_end) {
        struct kept *next = at_end->next;
        free(at_end);
        at_end = next;
    }
    return 0;
}
