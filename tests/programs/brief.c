/* Makes thousands of threads a second, which allocate little and end. "go N M": for at most two seconds, three
 * threads make up to N threads in all, each eight at a time. Each of the N allocates M blocks of a size that
 * encodes its thread ID, and frees them. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>

enum { MAKERS = 3, AT_ONCE = 8, MAX_BLOCKS = 16, KINDS = 1000 };
static atomic_int left, made;
static int blocks;
static time_t end;

NOINLINE static void *brief_block(size_t size) {
    void *p = malloc(size); /* @brief_block */
    KEEP(p);
    return p;
}
static void *end_soon(void *nothing) {
    void *mine[MAX_BLOCKS];
    size_t size = 100 + (size_t)syscall(SYS_gettid) % KINDS;
    for (int i = 0; i < blocks; i++) mine[i] = brief_block(size);
    for (int i = 0; i < blocks; i++) free(mine[i]);
    return nothing;
}
static time_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}
static void *make(void *nothing) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 65536);
    while (now() < end && atomic_fetch_sub(&left, AT_ONCE) > 0) {
        pthread_t ids[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            if (pthread_create(&ids[i], &attr, end_soon, NULL)) fail("pthread_create");
        }
        for (int i = 0; i < AT_ONCE; i++) pthread_join(ids[i], NULL);
        atomic_fetch_add(&made, AT_ONCE);
    }
    return nothing;
}

int main(void) {
    say("ready\n");
    for (;;) {
        int wanted;
        if (sscanf(command(), "go %d %d", &wanted, &blocks) != 2 || blocks > MAX_BLOCKS) continue;
        atomic_store(&left, wanted);
        atomic_store(&made, 0);
        end = now() + 2;
        pthread_t makers[MAKERS];
        for (int i = 0; i < MAKERS; i++) {
            if (pthread_create(&makers[i], NULL, make, NULL)) fail("pthread_create");
        }
        for (int i = 0; i < MAKERS; i++) pthread_join(makers[i], NULL);
        say("done threads=%d\n", atomic_load(&made));
    }
}
