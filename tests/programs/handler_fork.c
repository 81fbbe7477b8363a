/* Handlers that fork while their thread allocates. "go FORKS HOW": threads allocate hard and a timer forks in
 * whichever is running; each child returns from the handler, ends the call that it has interrupted, allocates and
 * exits with 0. HOW: "fork", "alt" (on a signal stack), "raw" (by syscall), "own" (by an instruction of the program's
 * own; the child allocates and exits in the handler). Blocks are small and of few sizes: they
 * come from the thread's own cache, so no child waits for a lock of the allocator that another thread of its parent
 * held. "done CHILDREN of which BAD bad". */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

/* Threads allocate no block of the handlers' size while a signal may come: a handler would find the list of cached blocks
 * of that size half changed, and the child would crash, with prof or without. */
enum { THREADS = 3, SECONDS = 20, OF_HANDLERS = 120 };
static volatile sig_atomic_t forks, active, is_child, raw, own;
static volatile int stop;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static pid_t raw_fork(void) {
#ifdef SYS_fork
    return (pid_t)syscall(SYS_fork);
#else
    return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
}

static pid_t own_fork(void) {
#if defined __x86_64__
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "0"(SYS_fork) : "rcx", "r11", "memory");
    return (pid_t)r;
#elif defined __aarch64__
    register long number __asm__("x8") = SYS_clone, r __asm__("x0") = SIGCHLD, a __asm__("x1") = 0,
                         b __asm__("x2") = 0, c __asm__("x3") = 0, d __asm__("x4") = 0;
    __asm__ volatile("svc 0" : "+r"(r) : "r"(number), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
    return (pid_t)r;
#else
    return raw_fork();
#endif
}

static void handler(int signal) {
    (void)signal;
    int saved = errno;
    if (is_child || __atomic_fetch_add(&active, 1, __ATOMIC_SEQ_CST) >= 8) {
        __atomic_fetch_sub(&active, 1, __ATOMIC_SEQ_CST);
        errno = saved;
        return;
    }
    pid_t pid = own ? own_fork() : raw ? raw_fork() : fork();
    if (pid == 0) is_child = 1;
    if (pid == 0 && own) {
        for (int i = 0; i < 10; i++) {
            void *p = malloc(OF_HANDLERS);
            KEEP(p);
            free(p);
        }
        _exit(0);
    }
    if (pid > 0) forks++;
    if (pid < 0) __atomic_fetch_sub(&active, 1, __ATOMIC_SEQ_CST);
    errno = saved;
}

/* Allocates at many depths, so that the hook has to unwind. */
NOINLINE static void at_depth(int depth) {
    if (depth > 0) {
        at_depth(depth - 1);
        __asm__ volatile("");
        return;
    }
    void *p = malloc(40), *q = malloc(200);
    KEEP(p);
    KEEP(q);
    free(p);
    free(q);
}

static void *work(void *unused) {
    (void)unused;
    static _Thread_local char alternate[64 << 10];
    stack_t s = {.ss_sp = alternate, .ss_size = sizeof alternate};
    if (sigaltstack(&s, NULL)) fail("sigaltstack");
    /* The allocator's locks are taken only before the first signal and after the last one. */
    for (int i = 0; i < 100; i++) at_depth(i & 31);
    void *cached = malloc(OF_HANDLERS);
    KEEP(cached);
    free(cached);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    uint32_t n = 1;
    while (!stop) {
        n = n * 1664525 + 1013904223;
        at_depth((int)(n >> 27));
        if (is_child) {
            for (int i = 0; i < 100; i++) at_depth(i & 15);
            _exit(0);
        }
    }
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return NULL;
}

static void run(int most, const char *how) {
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
    if (!strcmp(how, "alt")) a.sa_flags |= SA_ONSTACK;
    raw = !strcmp(how, "raw");
    own = !strcmp(how, "own");
    stop = 0;
    forks = 0;
    sigaction(SIGPROF, &a, NULL);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    pthread_t threads[THREADS];
    pthread_sigmask(SIG_BLOCK, &set, &old);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, NULL)) fail("pthread_create");
    struct itimerval often = {{0, 2003}, {0, 2003}};
    setitimer(ITIMER_PROF, &often, NULL);
    int children = 0, bad = 0;
    double end = now() + SECONDS;
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid > 0) {
            __atomic_fetch_sub(&active, 1, __ATOMIC_SEQ_CST);
            children++;
            if (status != 0 && bad++ == 0) fprintf(stderr, "a child ended with %x\n", status);
            continue;
        }
        if (!stop && (now() > end || forks >= most)) {
            struct itimerval none = {{0, 0}, {0, 0}};
            setitimer(ITIMER_PROF, &none, NULL);
            stop = 1;
            for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        }
        if (stop && pid < 0) break;
        usleep(500);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    say("done %d of which %d bad\n", children, bad);
}

int main(void) {
    say("ready\n");
    for (;;) {
        const char *c = command();
        int most;
        char how[16];
        if (sscanf(c, "go %d %15s", &most, how) == 2) run(most, how);
    }
}
