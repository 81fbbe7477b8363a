/* Calls exec on itself COUNT times, after a pause each time; every second call is made by a thread other than the
 * first: "execs COUNT MICROSECONDS". */
#include "common.h"
#include <pthread.h>

static char **next;

static void *replace(void *arg) {
    usleep((useconds_t)atoi(next[2]));
    execv("/proc/self/exe", next);
    fail("execv");
    return arg;
}

int main(int argc, char **argv) {
    char left[16];
    int count = argc > 1 ? atoi(argv[1]) : 0;
    free(malloc(100));
    if (count == 0) {
        say("ready\n");
        for (;;) {
            if (is(command(), "go")) say("done\n");
        }
    }
    snprintf(left, sizeof left, "%d", count - 1);
    next = (char *[]){argv[0], left, argv[2], NULL};
    pthread_t thread;
    if (count % 2 == 0) pthread_create(&thread, NULL, replace, NULL);
    else replace(NULL);
    for (;;) free(malloc(100));
}
