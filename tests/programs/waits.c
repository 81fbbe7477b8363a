/* Waits that a tracer's stop ends with EINTR, and that no kernel restarts. "once MS" waits once in each way, and
 * prints how long each took; "loop MS" waits over and over, until "count" asks for the number, and stops it; "loop
 * MS KIND": in another way than by epoll_wait. "raw" as the argument: epoll_wait by a system call instruction in the
 * program's own code, which checks the register of the timeout afterwards. "overflows": with a handler for stack
 * overflows, on a stack of its own, as runtimes have it. */
#include "common.h"
#include <linux/io_uring.h>
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

enum { KINDS = 5 };
static const char *const names[KINDS] = {"epoll_wait", "epoll_pwait2", "semtimedop", "sigtimedwait", "io_uring_enter"};
static int epoll_set, semaphores, uring = -1, raw;
static long wait_ms, loop_kind;
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

/* Definitions of linux/io_uring.h since Linux 5.11. */
enum { EXT_ARG = 1 << 3, FEATURE_EXT_ARG = 1 << 8 };
struct getevents { uint64_t mask; uint32_t mask_size, min_wait; uint64_t time; };

/* Waits for a completion that does not come. A kernel or a container may lack io_uring. */
static int uring_waited(long ms, const void *time) {
    struct getevents arg = {0, 8, 0, (uintptr_t)time};
    if (uring < 0) return usleep((useconds_t)ms * 1000) == 0;
    int flags = IORING_ENTER_GETEVENTS | EXT_ARG;
    int r = (int)syscall(SYS_io_uring_enter, uring, 0, 1, flags, &arg, sizeof arg);
    return r < 0 && errno == ETIME && arg.time == (uintptr_t)time;
}

/* Returns whether the wait ended as it should: by its timeout. */
static int waited(long kind, long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
    /* The type of newer calls, on 32 bits too: __kernel_timespec. */
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
    case 4:
        if (!uring_waited(ms, &wide)) return 0;
        break;
    default:
        sigemptyset(&one);
        sigaddset(&one, SIGRTMAX);
        if (sigtimedwait(&one, NULL, &t) >= 0 || errno != EAGAIN) return 0;
    }
    /* The call must not change the caller's timeout. */
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
        if (!waited(loop_kind, wait_ms)) atomic_fetch_add(&changed, 1);
        atomic_fetch_add(&rounds, 1);
    }
    return unused;
}

static void on_overflow(int signal) {
    (void)signal;
    _exit(9);
}

static void clean_up(void) {
    semctl(semaphores, 0, IPC_RMID);
}

int main(int argc, char **argv) {
    raw = argc > 1 && strcmp(argv[1], "raw") == 0;
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_overflow, .sa_flags = SA_ONSTACK};
    if (argc > 1 && strcmp(argv[1], "overflows") == 0) {
        if (sigaltstack(&other, NULL) || sigaction(SIGSEGV, &action, NULL)) fail("sigaltstack");
    }
    struct io_uring_params p = {0};
    uring = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (uring >= 0 && !(p.features & FEATURE_EXT_ARG)) {
        close(uring);
        uring = -1;
    }
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
            char *rest;
            wait_ms = strtol(line + 5, &rest, 10);
            loop_kind = atol(rest);
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
