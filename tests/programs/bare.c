/* A thread made by clone alone, without a thread pointer of its own, and a pool that such a thread may use. Command:
 * "alloc": each thread allocates a hundred blocks of the pool. */
#include "common.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { STACK = 64 << 10 };
static char pool[1 << 20];
static atomic_ulong next;
static atomic_int asked, answered;

NOINLINE void *bare_get(size_t size) {
    unsigned long at = atomic_fetch_add(&next, (size + 15) & ~15ul);
    void *p = pool + at % (sizeof pool / 2);
    KEEP(p);
    return p;
}

static int work(void *unused) {
    (void)unused;
    for (int seen = 0;;) {
        while (atomic_load(&asked) == seen) sched_yield();
        seen++;
        for (int i = 0; i < 100; i++) bare_get(32);
        atomic_fetch_add(&answered, 1);
    }
}

int main(void) {
    /* The heap is there from the start: the dynamic linker allocates in it, too, if it is to load a library. */
    void *first = malloc(1);
    KEEP(first);
    free(first);
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    if (clone(work, stack + STACK - 64, flags, NULL) < 0) fail("clone");
    say("ready\n");
    for (int round = 1;; round++) {
        command();
        atomic_fetch_add(&asked, 1);
        for (int i = 0; i < 100; i++) bare_get(32);
        while (atomic_load(&answered) != round) sched_yield();
        say("done\n");
    }
}
