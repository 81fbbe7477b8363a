/* Programs whose memory is next to prof's: one writes beyond the end of a block, one maps and unmaps all the time,
 * one locks all that it maps and may lock little. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define LARGE (3 << 20)
static volatile unsigned long rounds;

static void faulted(int signal) {
    (void)signal;
    say("done fault\n");
    _exit(77);
}
static void overflow(void) {
    struct sigaction action = {.sa_handler = faulted};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    volatile char *p = malloc(LARGE);
    KEEP(p);
    for (size_t at = LARGE - 64; at < LARGE + (64u << 20); at += 64) p[at] = 'x';
    say("done survived\n");
}

/* Returns the end of the last library. */
static uintptr_t libraries_end(void) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long from, to, last = 0;
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, ".so") && sscanf(line, "%lx-%lx", &from, &to) == 2) last = to;
    if (f) fclose(f);
    return last;
}
/* Fills the free address space below and above the libraries, and empties it again. */
static void *maps(void *end) {
    enum { LIVE = 64 };
    const size_t len = 64 << 10;
    char *all[LIVE];
    for (;; rounds++) {
        for (int k = 0; k < LIVE; k++) {
            char *wish = k % 2 ? (char *)end + (size_t)k / 2 * len : NULL;
            all[k] = mmap(wish, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (all[k] == MAP_FAILED) fail("mmap: %d", errno);
            *all[k] = 1;
        }
        for (int k = 0; k < LIVE; k++) munmap(all[k], len);
    }
    return end;
}

static void lock_future(void) {
    struct rlimit little = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &little)) fail("limit");
    if (mlockall(MCL_FUTURE)) fail("mlockall: %d", errno);
    /* Root may lock any amount. */
    if (geteuid() == 0 && setresuid(65534, 65534, 65534)) fail("uid");
}
/* Maps, and so locks, as much as is allowed. */
static void lock_the_rest(void) {
    long page = sysconf(_SC_PAGESIZE);
    while (mmap(NULL, (size_t)page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {}
    if (errno != EAGAIN) fail("mmap: %d", errno);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    pthread_t thread;
    if (is(mode, "maps") && pthread_create(&thread, NULL, maps, (void *)libraries_end())) fail("thread");
    if (is(mode, "locks")) lock_future();
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (is(word, "overflow")) overflow();
        if (is(word, "rest")) {
            lock_the_rest();
            say("done\n");
        }
        if (is(word, "blocks")) {
            for (volatile int i = 0; i < 10; i++) {
                void *p = malloc(7000);
                KEEP(p);
                free(p);
            }
            say("done\n");
        }
        if (is(word, "count")) say("done %lu\n", rounds);
    }
}
