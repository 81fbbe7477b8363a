/* Waits that a tracer's stop ends with EINTR, and that no kernel restarts. "once MS" waits once in each
 * way, and says how long each took; "loop MS" begins to wait over and over, until "count" asks how often,
 * and stops it. "raw" as the argument: epoll_wait by a system call instruction in the program's own code,
 * which looks at the register of the timeout afterwards. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <time.h>

#ifndef SYS_epoll_pwait2 /* of Linux 5.11; other architectures count from elsewhere */
#define SYS_epoll_pwait2 (SYS_io_uring_setup + 16)
#endif

enum { KINDS = 4 };
static const char *const names[KINDS] = {"epoll_wait", "epoll_pwait2", "semtimedop", "sigtimedwait"};
static int epoll_set, semaphores, raw;
static long wait_ms;
static atomic_int looping, rounds, changed;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

static int raw_epoll_wait(struct epoll_event *e, long ms) {
#ifdef __x86_64__
    long result = SYS_epoll_wait;
    register long timeout __asm__("r10") = ms;
    __asm__ volatile("syscall" : "+a"(result), "+r"(timeout)
                     : "D"((long)epoll_set), "S"(e), "d"(1L) : "rcx", "r11", "memory");
    if (timeout != ms) atomic_fetch_add(&changed, 1);
    return result == 0;
#else
    return epoll_wait(epoll_set, e, 1, (int)ms) == 0;
#endif
}

/* True if the wait ended as it should: by its timeout. */
static int waited(long kind, long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
    /* What newer calls take, on 32 bits too: __kernel_timespec. */
    struct { int64_t s, ns; } wide = {t.tv_sec, t.tv_nsec};
    struct sembuf down = {0, -1, 0};
    struct epoll_event e;
    sigset_t one;
    switch (kind) {
    case 0: return raw ? raw_epoll_wait(&e, ms) : epoll_wait(epoll_set, &e, 1, (int)ms) == 0;
    case 1:
        if (syscall(SYS_epoll_pwait2, epoll_set, &e, 1, &wide, NULL, 8) == 0) break;
        if (errno != ENOSYS) return 0;
        usleep((useconds_t)ms * 1000);
        break;
    case 2: return semtimedop(semaphores, &down, 1, &t) < 0 && errno == EAGAIN;
    default:
        sigemptyset(&one);
        sigaddset(&one, SIGRTMAX);
        if (sigtimedwait(&one, NULL, &t) >= 0 || errno != EAGAIN) return 0;
    }
    /* What the caller has is its own. */
    return wide.s == ms / 1000 && t.tv_sec == ms / 1000 && t.tv_nsec == ms % 1000 * 1000000l;
}

static long took[KINDS];
static void *once(void *argument) {
    long kind = (long)argument;
    int64_t began = now_ms();
    took[kind] = waited(kind, wait_ms) ? (long)(now_ms() - began) : -errno - 1;
    return NULL;
}
static void *over_and_over(void *unused) {
    while (atomic_load(&looping)) {
        if (!waited(0, wait_ms)) atomic_fetch_add(&changed, 1);
        atomic_fetch_add(&rounds, 1);
    }
    return unused;
}

static void clean_up(void) {
    semctl(semaphores, 0, IPC_RMID);
}

int main(int argc, char **argv) {
    raw = argc > 1 && strcmp(argv[1], "raw") == 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMAX);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    epoll_set = epoll_create1(0);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    if (epoll_set < 0 || semaphores < 0) fail("epoll_create1 or semget: %d", errno);
    atexit(clean_up);
    pthread_t ids[KINDS];
    free(malloc(100));
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (strncmp(line, "once ", 5) == 0) {
            wait_ms = atol(line + 5);
            for (long k = 0; k < KINDS; k++) {
                if (pthread_create(&ids[k], NULL, once, (void *)k)) fail("pthread_create");
            }
            say("going\n");
            for (int k = 0; k < KINDS; k++) pthread_join(ids[k], NULL);
            for (int k = 0; k < KINDS; k++) say("%s took %ld\n", names[k], took[k]);
            say("done changed=%d\n", atomic_load(&changed));
        } else if (strncmp(line, "loop ", 5) == 0) {
            wait_ms = atol(line + 5);
            atomic_store(&rounds, 0);
            atomic_store(&looping, 1);
            if (pthread_create(&ids[0], NULL, over_and_over, NULL)) fail("pthread_create");
            say("going\n");
        } else if (strcmp(line, "count") == 0) {
            int n = atomic_load(&rounds);
            atomic_store(&looping, 0);
            pthread_join(ids[0], NULL);
            say("done %d changed=%d\n", n, atomic_load(&changed));
        }
    }
}
