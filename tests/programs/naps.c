/* Sleeps in its only thread. "nap MS" sleeps for that time, and prints how long it took and whether it was cut short. */
#include "common.h"
#include <time.h>

static long long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

int main(void) {
    say("ready\n");
    for (;;) {
        long ms;
        if (sscanf(command(), "nap %ld", &ms) != 1) continue;
        struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
        say("going\n");
        long long began = now_ms();
        int cut = nanosleep(&t, NULL);
        say("done %lld %d\n", now_ms() - began, cut);
    }
}
