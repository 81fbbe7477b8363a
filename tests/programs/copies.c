/* Loads a second copy of libc, in a namespace of its own (dlmopen), and unloads it again, until "quit". */
#include "common.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

static atomic_int rounds, over;

static void *load(void *unused) {
    while (!over) {
        void *space = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
        if (!space) fail("dlmopen: %s", dlerror());
        usleep(20000);
        dlclose(space);
        usleep(5000);
        rounds++;
    }
    return unused;
}

int main(void) {
    pthread_t loader;
    if (pthread_create(&loader, NULL, load, NULL)) fail("pthread_create");
    while (!rounds) usleep(1000);
    say("ready\n");
    while (is(command(), "rounds")) say("%d\n", rounds);
    over = 1;
    pthread_join(loader, NULL);
    say("bye\n");
}
