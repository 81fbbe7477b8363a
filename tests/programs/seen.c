/* Sits where a debugger finds it. "sleep": in a function that allocates and waits for the next command before it does.
 * "inform": in libc's malloc_info, whose output nobody takes before the next command. "spin": in pairs of malloc and
 * free, until the next command. */
#include "common.h"
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>

static void *kept[64];

NOINLINE static void *sleeping_alloc(size_t size) {
    say("sleeping\n");
    command();
    void *p = malloc(size);
    KEEP(p);
    return p;
}
NOINLINE static void *asks_for_it(void) {
    void *p = sleeping_alloc(72); /* @sleeping_alloc */
    KEEP(p);
    return p;
}
static void *drains(void *fd) {
    char bytes[4096];
    command();
    while (read((int)(intptr_t)fd, bytes, sizeof bytes) > 0) {
    }
    return NULL;
}
NOINLINE static void asks_for_info(FILE *to) {
    malloc_info(0, to);
    KEEP(to);
}
static void inform(void) {
    int ends[2];
    pthread_t drain;
    if (pipe(ends)) fail("pipe");
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], ends, 1) == 1) {
    }
    fcntl(ends[1], F_SETFL, 0);
    FILE *to = fdopen(ends[1], "w");
    setvbuf(to, NULL, _IONBF, 0);
    if (pthread_create(&drain, NULL, drains, (void *)(intptr_t)ends[0])) fail("pthread_create");
    say("informing\n");
    asks_for_info(to);
    fclose(to);
    pthread_join(drain, NULL);
}
NOINLINE static void spins(void) {
    struct pollfd in = {.fd = 0, .events = POLLIN};
    while (poll(&in, 1, 0) == 0)
        for (int i = 0; i < 100000; i++) {
            void *p = malloc(24);
            KEEP(p);
            free(p);
        }
    command();
}

int main(void) {
    int n = 0;
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (is(word, "sleep")) {
            kept[n++] = asks_for_it();
        } else if (is(word, "inform")) {
            inform();
        } else if (is(word, "spin")) {
            say("spinning\n");
            spins();
        }
        say("done\n");
    }
}
