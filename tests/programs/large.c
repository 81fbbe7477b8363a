/* A process with much memory, in which a thread maps and unmaps a page all the time: the longest call shows how long
 * others hold the lock of the mappings. Argument: MiB of memory to touch. "reset" starts over, "longest" prints the
 * longest call in microseconds: without the time that the thread waited for a processor, and with it. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

static atomic_long longest_ns, longest_wall_ns, calls;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

/* Returns the time that the thread has waited for a processor so far. */
static long waited(int fd) {
    char text[128] = "";
    unsigned long run, wait;
    if (pread(fd, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%lu %lu", &run, &wait) != 2) fail("schedstat");
    return (long)wait;
}

static void keep_longest(atomic_long *to, long ns) {
    if (ns > atomic_load(to)) atomic_store(to, ns);
}

static void *map(void *nothing) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", (long)syscall(SYS_gettid));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("schedstat: %d", errno);
    for (;;) {
        long queue = waited(fd), begin = now();
        void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || munmap(p, 4096)) fail("mmap: %d", errno);
        long took = now() - begin;
        keep_longest(&longest_wall_ns, took);
        keep_longest(&longest_ns, took - (waited(fd) - queue));
        atomic_fetch_add(&calls, 1);
        usleep(20);
    }
    return nothing;
}

int main(int argc, char **argv) {
    size_t len = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) << 20;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("%zu bytes: %d", len, errno);
    /* Most of a heap is in small pages. */
    madvise(memory, len, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < len; at += 4096) memory[at] = 1;
    pthread_t id;
    if (pthread_create(&id, NULL, map, NULL)) fail("pthread_create");
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "reset")) {
            atomic_store(&longest_ns, 0);
            atomic_store(&longest_wall_ns, 0);
            atomic_store(&calls, 0);
            say("done\n");
        } else if (is(line, "longest")) {
            say("done %ld %ld %ld\n", atomic_load(&longest_ns) / 1000, atomic_load(&longest_wall_ns) / 1000, atomic_load(&calls));
        } else if (is(line, "alloc")) {
            for (int i = 0; i < 1000; i++) {
                void *p = malloc(100);
                KEEP(p);
                free(p);
            }
            say("done\n");
        }
    }
}
