/* A process that shares its memory with another one, made by clone with CLONE_VM and without CLONE_THREAD. Both
 * allocate all the time. The other one has the thread pointer of a thread that only waits, so both may be in the
 * allocator at once; with "own", that of a thread that has ended, so libc knows no ID of it. With "slow" and "own"
 * they allocate less. With "inside", a thread of the first process is in a hooked function all the time. With "files",
 * they share descriptors and signal handlers. "ready PID" names the other process. */
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { STACK = 256 << 10, HELD = 64, PAGES = 64 << 20 };

static _Atomic(void *) lent_pointer;
static atomic_int stop;
static int slow;
static atomic_ulong rounds[2];

static void *lend(void *arg) {
    atomic_store(&lent_pointer, __builtin_thread_pointer());
    while (!arg) pause();
    /* The thread's memory stays, as it is never joined; libc has no thread ID in it any more. */
    syscall(SYS_exit, 0);
    return arg;
}

NOINLINE static void *shared_block(size_t size) { return malloc(size); }

static void churn(int who, uint32_t seed) {
    struct { void *block; size_t size; uint32_t seed; } held[HELD] = {0};
    while (!atomic_load(&stop)) {
        unsigned i = next_random(&seed) % HELD;
        if (held[i].block) {
            check(held[i].block, held[i].size, held[i].seed);
            free(held[i].block);
        }
        held[i].size = 1 + next_random(&seed) % 300;
        held[i].seed = seed;
        held[i].block = shared_block(held[i].size);
        fill(held[i].block, held[i].size, seed);
        atomic_fetch_add(&rounds[who], 1);
        if (slow && i % 8 == 0) usleep(20);
    }
    for (unsigned i = 0; i < HELD; i++) free(held[i].block);
}

static int threads(void) {
    char text[2048];
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *line = strstr(text, "Threads:");
    return line ? atoi(line + 8) : 0;
}

static int inside;

static void *churn_here(void *arg) {
    while (inside && !atomic_load(&stop)) {
        void *pages = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        munmap(pages, PAGES);
        atomic_fetch_add(&rounds[0], 100);
    }
    churn(0, 12345);
    return arg;
}

/* The other process ends when its input does, as it may outlive the first. */
static void *watch_input(void *arg) {
    struct pollfd p = {.fd = 0};
    while (!(p.revents & POLLHUP)) poll(&p, 1, -1);
    _exit(0);
    return arg;
}

static int churn_there(void *arg) {
    (void)arg;
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, watch_input, NULL)) _exit(7);
    churn(1, 54321);
    _exit(0);
}

int main(int argc, char **argv) {
    pthread_t lender, churner;
    int own = argc > 1 && is(argv[1], "own");
    inside = argc > 1 && is(argv[1], "inside");
    slow = own || (argc > 1 && is(argv[1], "slow"));
    pthread_create(&lender, NULL, lend, own ? &own : NULL);
    while (!atomic_load(&lent_pointer)) sched_yield();
    while (own && threads() > 1) usleep(100);
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int flags = CLONE_VM | CLONE_SETTLS | SIGCHLD;
    if (argc > 1 && is(argv[1], "files")) flags |= CLONE_FILES | CLONE_SIGHAND | CLONE_FS;
    pid_t other = clone(churn_there, stack + STACK, flags, NULL, NULL, atomic_load(&lent_pointer), NULL);
    if (other < 0) fail("clone: %s", strerror(errno));
    pthread_create(&churner, NULL, churn_here, NULL);
    say("ready %d\n", (int)other);
    for (;;) {
        const char *line = command();
        if (is(line, "alive")) {
            /* Both make progress, and the other has not ended. */
            unsigned long was[2] = {atomic_load(&rounds[0]), atomic_load(&rounds[1])};
            for (int i = 0; i < 2; i++) {
                while (atomic_load(&rounds[i]) < was[i] + 100) {
                    int status = 0;
                    if (waitpid(other, &status, WNOHANG) == other) fail("the other has ended: %x", status);
                    usleep(100);
                }
            }
            say("done alive\n");
        } else if (is(line, "stop")) {
            atomic_store(&stop, 1);
            int status = 0;
            waitpid(other, &status, 0);
            pthread_join(churner, NULL);
            if (status) fail("the other has ended: %x", status);
            say("done stopped\n");
        } else if (is(line, "leave")) {
            say("done leaving\n");
            /* End the whole group of threads, without freeing anything of the other process. */
            syscall(SYS_exit_group, 0);
        }
    }
}
