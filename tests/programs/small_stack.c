/* Threads with stacks of 16 KiB (or libc's minimum) that use most of it themselves, and allocate at the deepest
 * point: little is left for a recorder. */
#include "common.h"
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined __aarch64__ || defined __mips__
enum { STACK = 131072, THREADS = 50 };
#else
enum { STACK = 16384, THREADS = 50 };
#endif

NOINLINE static void cramped_block(void) {
    void *p = malloc(6001); /* @cramped_block */
    KEEP(p);
}
/* Recurses until about 3 KiB are left above the guard page. */
NOINLINE static void squeeze(char *lowest) {
    volatile char here[256];
    here[0] = 1;
    if ((char *)here - lowest > 3072 + 512) {
        squeeze(lowest);
    } else {
        cramped_block();
    }
    here[1] = here[0];
}
static void *work(void *lowest) {
    squeeze(lowest);
    return NULL;
}

int main(void) {
    size_t page = sysconf(_SC_PAGESIZE);
    char *space = mmap(NULL, STACK + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED || mprotect(space, page, PROT_NONE)) fail("mmap");
    say("ready\n");
    for (;;) {
        if (!is(command(), "go")) continue;
        for (int i = 0; i < THREADS; i++) {
            pthread_attr_t attributes;
            pthread_t id;
            pthread_attr_init(&attributes);
            if (pthread_attr_setstack(&attributes, space + page, STACK)) fail("setstack");
            if (pthread_create(&id, &attributes, work, space + page)) fail("pthread_create");
            pthread_join(id, NULL);
            pthread_attr_destroy(&attributes);
        }
        say("done\n");
    }
}
