/* As many threads at a time as are asked for. "go N" starts them, and each allocates a block; "free" makes each free
 * its own; "end" joins them. They wait without using a processor. "lock" locks all that is mapped. */
#include "common.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static atomic_int phase, arrived;
static pthread_t *ids;
static int threads;

static void wait_for(int wanted) {
    for (int now; (now = atomic_load(&phase)) < wanted;) {
        syscall(SYS_futex, &phase, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
    }
}
static void all_in_phase(int next) {
    atomic_store(&arrived, 0);
    atomic_store(&phase, next);
    syscall(SYS_futex, &phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    while (atomic_load(&arrived) < threads) usleep(1000);
}
NOINLINE static void *crowd_block(void) {
    void *p = malloc(5001); /* @crowd_block */
    KEEP(p);
    return p;
}
static void *work(void *nothing) {
    void *p = crowd_block();
    fill(p, 64, 5);
    atomic_fetch_add(&arrived, 1);
    wait_for(1);
    check(p, 64, 5);
    free(p);
    atomic_fetch_add(&arrived, 1);
    wait_for(2);
    return nothing;
}
static void *memory(size_t size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    return p;
}

int main(void) {
    say("ready\n");
    for (;;) {
        const char *line = command();
        int wanted;
        if (sscanf(line, "go %d", &wanted) == 1) {
            size_t stack = (size_t)sysconf(_SC_THREAD_STACK_MIN) + 8192;
            stack = (stack + 65535) / 65536 * 65536;
            char *stacks = memory(stack * (size_t)wanted);
            ids = memory(sizeof *ids * (size_t)wanted);
            pthread_attr_t attr;
            pthread_attr_init(&attr);
            for (threads = 0; threads < wanted; threads++) {
                pthread_attr_setstack(&attr, stacks + stack * (size_t)threads, stack);
                if (pthread_create(&ids[threads], &attr, work, NULL)) break;
            }
            while (atomic_load(&arrived) < threads) usleep(1000);
            say("done threads=%d\n", threads);
        } else if (is(line, "lock")) {
            say(mlockall(MCL_CURRENT) ? "done refused\n" : "done locked\n");
        } else if (is(line, "free")) {
            all_in_phase(1);
            say("done\n");
        } else if (is(line, "end")) {
            atomic_store(&phase, 2);
            syscall(SYS_futex, &phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
            for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
            say("done\n");
        }
    }
}
