/* "N": has N threads in all, N - 1 of which wait in an endless read. */
#include "../programs/common.h"
#include <pthread.h>

static int never[2];
static void *work(void *argument) {
    char c;
    while (read(never[0], &c, 1) <= 0) {
    }
    return argument;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (pipe(never)) fail("pipe");
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = 1; i < threads; i++) {
        pthread_t id;
        if (pthread_create(&id, &small, work, NULL)) fail("pthread_create");
    }
    say("ready\n");
    for (;;) command();
}
