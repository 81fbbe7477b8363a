/* Opens and closes pipes in two threads, each on a processor of its own, for so many seconds. Prints the pipes a second,
 * and the ns of processor time that each took. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile int stop;
static long done[2];

static void *work(void *number) {
    long i = (long)number;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(i % sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);
    while (!stop) {
        int ends[2];
        if (pipe(ends)) abort();
        close(ends[0]);
        close(ends[1]);
        done[i]++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    usleep((useconds_t)(seconds * 1e6));
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    double cpu = (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
    long all = done[0] + done[1];
    printf("%.0f %.0f\n", (double)all / seconds, cpu / (double)all);
}
