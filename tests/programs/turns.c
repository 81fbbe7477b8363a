/* What a sample is to see of a busy program: "turn A B N" takes A megabytes a second and gives them back at once, and
 * keeps B kilobytes a second, for N hundredths of a second; "early N" and "late N" keep N blocks. */
#include "common.h"
#include <time.h>

enum { TURN = 16384, LEAK = 512 };

NOINLINE static void turn(long n) {
    for (long i = 0; i < n; i++) {
        void *p = malloc(TURN); /* @turn */
        KEEP(p);
        free(p);
    }
}
NOINLINE static void leak(long n) {
    for (long i = 0; i < n; i++) {
        void *p = malloc(LEAK); /* @leak */
        KEEP(p);
    }
}
NOINLINE static void early(long n) {
    for (long i = 0; i < n; i++) {
        void *p = malloc(64); /* @early */
        KEEP(p);
    }
}
NOINLINE static void late(long n) {
    for (long i = 0; i < n; i++) {
        void *p = malloc(64); /* @late */
        KEEP(p);
    }
}

static long ns_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - start->tv_sec) * 1000000000L + (now.tv_nsec - start->tv_nsec);
}

/* So much is done, however late it gets. */
static void turns(long megabytes, long kilobytes, long slices) {
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    long leaked = 0;
    for (long i = 0; i < slices; i++) {
        turn(megabytes * 1000000 / TURN / 100);
        long due = kilobytes * 1000 / LEAK * (i + 1) / 100;
        leak(due - leaked);
        leaked = due;
        long left = (i + 1) * 10000000L - ns_since(&start);
        if (left > 0) usleep((useconds_t)(left / 1000));
    }
}

int main(void) {
    say("ready\n");
    for (;;) {
        const char *line = command();
        long a = 0, b = 0, n = 0;
        if (sscanf(line, "turn %ld %ld %ld", &a, &b, &n) == 3) turns(a, b, n);
        if (sscanf(line, "early %ld", &n) == 1) early(n);
        if (sscanf(line, "late %ld", &n) == 1) late(n);
        say("done\n");
    }
}
