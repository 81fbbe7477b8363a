/* A fiber on a small stack, in the middle of a mapping: right below it lies data that others use. The program waits
 * for its commands there, and another thread checks all the time whether a byte of that data has changed. "count"
 * prints how often one had, and the number of checks. */
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { DATA = 64 << 10, STACK = 1024 };
static unsigned char *data;
static atomic_int bad, looks;
static ucontext_t home, fiber;

static void *look(void *unused) {
    for (;;) {
        int found = 0;
        for (int i = 0; i < DATA; i++) found += data[i] != (unsigned char)(i * 7 + 3);
        if (found) atomic_fetch_add(&bad, 1);
        atomic_fetch_add(&looks, 1);
    }
    return unused;
}

static char *put(char *to, unsigned n) {
    if (n > 9) to = put(to, n / 10);
    *to = (char)('0' + n % 10);
    return to + 1;
}

static void on_fiber(void) {
    for (;;) {
        /* prof interrupts a waiting thread rather than a running one. */
        struct pollfd p = {0, POLLIN, 0};
        poll(&p, 1, -1);
        command();
        static char line[64] = "done bad=";
        char *end = put(line + 9, (unsigned)atomic_load(&bad));
        *end++ = '\n';
        if (write(1, line, (size_t)(end - line)) < 0) _exit(7);
    }
}

int main(int argc, char **argv) {
    if (argc < 1) fail("no name");
    data = mmap(NULL, 4 * DATA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED || getcontext(&fiber)) fail("fiber");
    for (int i = 0; i < DATA; i++) data[i] = (unsigned char)(i * 7 + 3);
    fiber.uc_stack.ss_sp = data + DATA;
    fiber.uc_stack.ss_size = STACK;
    fiber.uc_link = &home;
    makecontext(&fiber, on_fiber, 0);
    pthread_t id;
    if (pthread_create(&id, NULL, look, NULL)) fail("pthread_create");
    free(malloc(100));
    while (atomic_load(&looks) < 2) usleep(1000);
    /* Resolve these now: the dynamic linker needs more stack than the fiber has. */
    char c;
    int (*volatile compare)(const char *, const char *) = strcmp;
    if (read(-1, &c, 1) >= 0 || compare("quit", "quit") || write(-1, &c, 1) >= 0 || poll(NULL, 0, 0)) {
        fail("read");
    }
    atomic_store(&bad, is("a", argv[0])); /* the same by way of the linkage table */
    say("ready\n");
    swapcontext(&home, &fiber);
    return 0;
}
