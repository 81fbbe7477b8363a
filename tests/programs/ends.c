// Loses 7 blocks and a ring of two, and ends in the way that the first argument names: "return", "exit" (4), "_exit" (3),
// "abort", "signal" (SIGTERM), "first" (the first thread ends before the others), "thread" (another thread calls exit, 5),
// "exec" (another thread runs the program anew, which then returns), "alone" (its only thread ends by the system call exit,
// which ends the process without an exit_group). With a second argument, two threads are there until
// the end: each has a block on its stack, and another in a register alone.
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void *kept;
static pthread_barrier_t all;

NOINLINE static void lost_plain(int n) {
    for (int i = 0; i < n; i++) {
        char *p = malloc(100);
        strcpy(p, "lost");
        KEEP(p);
    }
}

NOINLINE static void lost_ring(void) {
    void **a = malloc(48), **b = malloc(48);
    a[0] = b;
    b[0] = a;
    KEEP(a);
}

// Overwrites what calls have left below the stack pointer and in registers, of which later calls may save some: an old pointer
// may hold a block for as long as it stands anywhere.
NOINLINE static void clear(long a, long b, long c, long d, long e, long f) {
    char below[32 << 10];
    memset(below, 0, sizeof below);
    __asm__ volatile("" : : "r"(below), "r"(a + b + c + d + e + f) : "memory");
#if defined(__x86_64__)
    __asm__ volatile("xor %%r10, %%r10\n\txor %%r11, %%r11" : : : "r10", "r11");
#endif
}

// Keeps a pointer in no place but a register that calls preserve.
static void in_register(void *p) {
#if defined(__x86_64__)
    register void *r __asm__("r12") = p;
#elif defined(__aarch64__)
    register void *r __asm__("x20") = p;
#elif defined(__arm__)
    register void *r __asm__("r8") = p;
#else
    register void *r __asm__("$16") = p;
#endif
    for (;;) __asm__ volatile("" : "+r"(r));
}

NOINLINE static void *stays(void *arg) {
    void *volatile held_stack = malloc(777);
    pthread_barrier_wait(&all);
    in_register(malloc(888));
    KEEP(held_stack);
    return arg;
}

NOINLINE static void *brief(void *arg) {
    free(malloc(10));
    return arg;
}

static char *me;

NOINLINE static void *ends(void *how) {
    if (!strcmp(how, "thread")) exit(5);
    if (!strcmp(how, "exec")) execl(me, me, "return", (char *)NULL);
    usleep(50000);
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "return";
    me = argv[0];
    kept = malloc(5000);
    lost_plain(7);
    lost_ring();
    clear(0, 0, 0, 0, 0, 0);
    pthread_t t;
    for (int i = 0; i < 20; i++) {
        pthread_create(&t, NULL, brief, NULL);
        pthread_join(t, NULL);
    }
    if (argc > 2) {
        pthread_barrier_init(&all, NULL, 3);
        for (int i = 0; i < 2; i++) pthread_create(&t, NULL, stays, NULL);
        pthread_barrier_wait(&all);
        usleep(50000);
    }
    void *volatile held_local = malloc(333);
    KEEP(held_local);
    if (!strcmp(how, "exit")) exit(4);
    if (!strcmp(how, "_exit")) _exit(3);
    if (!strcmp(how, "alone")) syscall(SYS_exit, 0);
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "signal")) raise(SIGTERM);
    if (!strcmp(how, "return")) {
        free(held_local);
        return 0;
    }
    pthread_create(&t, NULL, ends, (void *)how);
    if (!strcmp(how, "first")) pthread_exit(NULL);
    pthread_join(t, NULL);
    KEEP(held_local);
    return 9;
}
