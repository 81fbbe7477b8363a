/* Threads whose stacks have guards that are no mappings of their own, as glibc makes them since 2.42: the kernel joins the
 * stacks to one mapping. Old pointers stand below the stack pointers, and in the variables of a thread that has ended. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { EACH = 20, THREADS = 3 };

NOINLINE static void *lost_below(void) {
    void *p = calloc(1, 40);
    KEEP(p);
    return p;
}

NOINLINE static void *lost_thread_local(void) {
    void *p = calloc(1, 40);
    KEEP(p);
    return p;
}

NOINLINE static void *held_by_stack(void) {
    void *p = calloc(1, 40);
    KEEP(p);
    return p;
}

static __thread void *volatile of_thread[EACH];
static pthread_barrier_t all, last;

NOINLINE static void deep(int n) {
    void *volatile keep[64];
    for (int i = 0; i < 64; i++) keep[i] = NULL;
    if (n > 0) {
        deep(n - 1);
    } else {
        for (int i = 0; i < EACH; i++) keep[i + 20] = lost_below();
    }
    __asm__ volatile("" : : "r"(keep) : "memory");
}

/* Makes the guard of a stack one inside of its mapping. Returns whether the kernel can. */
static int guard_within(char *stack, size_t size) {
    /* Some versions of libc count the guard as a part of the stack. */
    int out[2];
    if (pipe(out) != 0) return 0;
    char *guard = write(out[1], stack, 1) == 1 ? stack - size : stack;
    close(out[0]);
    close(out[1]);
    if (mprotect(guard, size, PROT_READ | PROT_WRITE) != 0) return 0;
    if (madvise(guard, size, MADV_GUARD_INSTALL) != 0) return 0;
    /* Linux 6.13 and 6.14 do not tell of guards (pagemap, bit 58). */
    uint64_t entry = 0;
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    off_t at = (off_t)((uintptr_t)guard / (uintptr_t)sysconf(_SC_PAGESIZE) * sizeof entry);
    int told = pread(pagemap, &entry, sizeof entry, at) == sizeof entry && entry >> 58 & 1;
    close(pagemap);
    return told;
}

static void *work(void *ends) {
    void *volatile own[EACH];
    pthread_barrier_wait(&all);
    deep(40);
    for (int i = 0; i < EACH; i++) own[i] = held_by_stack();
    __asm__ volatile("" : : "r"(own) : "memory");
    if (ends) {
        for (int i = 0; i < EACH; i++) of_thread[i] = lost_thread_local();
        for (int i = 0; i < EACH; i++) free(own[i]);
        return NULL;
    }
    pthread_barrier_wait(&last);
    for (;;) pause();
    return (void *)own;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&all, NULL, THREADS + 1);
    pthread_barrier_init(&last, NULL, THREADS);
    int can = 1;
    for (long i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, work, (void *)(long)(i == 1));
        pthread_attr_t attributes;
        void *stack;
        size_t size, guard;
        if (pthread_getattr_np(threads[i], &attributes) != 0) return 1;
        pthread_attr_getstack(&attributes, &stack, &size);
        pthread_attr_getguardsize(&attributes, &guard);
        pthread_attr_destroy(&attributes);
        can = can && guard_within(stack, guard);
    }
    say("%s\n", can ? "ready" : "no guards");
    for (;;) {
        const char *line = command();
        if (is(line, "begin")) {
            pthread_barrier_wait(&all);
            pthread_join(threads[1], NULL);
            pthread_barrier_wait(&last);
        }
        say("done\n");
    }
}
