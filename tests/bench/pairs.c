/* Measures its own malloc+free pairs: "same D T N": T threads, each D calls deep, do N pairs from
 * one place; "moving D T N": the innermost four frames are left and entered anew for each pair,
 * by one of 16 ways. Prints the CPU nanoseconds per pair, the mean over the threads. */
#include "../programs/common.h"
#include <pthread.h>
#include <time.h>

struct job {
    int depth;
    long pairs;
    int moving;
    double ns;
};

static double cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

NOINLINE static void pair(void) {
    void *p = malloc(64);
    KEEP(p);
    free(p);
}
NOINLINE static void left(unsigned way, int levels);
NOINLINE static void right(unsigned way, int levels) {
    if (levels == 0) {
        pair();
    } else if (way & 1) {
        left(way >> 1, levels - 1);
    } else {
        right(way >> 1, levels - 1);
    }
    KEEP(way);
}
NOINLINE static void left(unsigned way, int levels) {
    if (levels == 0) {
        pair();
    } else if (way & 1) {
        right(way >> 1, levels - 1);
    } else {
        left(way >> 1, levels - 1);
    }
    KEEP(levels);
}
NOINLINE static void bottom(struct job *job) {
    uint32_t random = 12345;
    double start = cpu_ns();
    if (job->moving) {
        for (long i = 0; i < job->pairs; i++) left(next_random(&random) >> 7, 3);
    } else {
        for (long i = 0; i < job->pairs; i++) {
            void *p = malloc(64);
            KEEP(p);
            free(p);
        }
    }
    job->ns = (cpu_ns() - start) / (double)job->pairs;
}
NOINLINE static void descend(struct job *job, int left_to_go) {
    if (left_to_go <= 0) {
        bottom(job);
    } else {
        descend(job, left_to_go - 1);
    }
    KEEP(job);
}
static void *work(void *argument) {
    struct job *job = argument;
    descend(job, job->depth);
    return NULL;
}

int main(void) {
    say("ready\n");
    for (;;) {
        char mode[16];
        int depth, threads;
        long pairs;
        if (sscanf(command(), "%15s %d %d %ld", mode, &depth, &threads, &pairs) != 4) continue;
        struct job jobs[64];
        pthread_t ids[64];
        if (threads < 1 || threads > 64) fail("threads");
        for (int t = 0; t < threads; t++) {
            jobs[t] = (struct job){depth, pairs, is(mode, "moving"), 0};
            if (pthread_create(&ids[t], NULL, work, &jobs[t])) fail("pthread_create");
        }
        double sum = 0;
        for (int t = 0; t < threads; t++) {
            pthread_join(ids[t], NULL);
            sum += jobs[t].ns;
        }
        say("done %.2f\n", sum / threads);
    }
}
