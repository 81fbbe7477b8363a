/* Forbids itself to read the processor's counter, as sandboxes and recorders of executions do: before it prints
 * "ready" if its argument is "early", later by the commands "prctl" and "syscall". "alloc" allocates blocks, some of
 * them in another thread; nothing here reads the time. */
#include "common.h"
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

NOINLINE static void *timed_block(size_t size) {
    void *p = malloc(size); /* @timed_block */
    KEEP(p);
    return p;
}

static void *work(void *unused) {
    for (int i = 0; i < 100; i++) free(timed_block(48));
    return unused;
}

static void forbid(int by_prctl) {
    int r = by_prctl ? prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)
                     : (int)syscall(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
    if (r) fail("PR_SET_TSC");
}

int main(int argc, char **argv) {
    if (argc > 1 && is(argv[1], "early")) forbid(1);
    say("ready\n");
    for (;;) {
        const char *c = command();
        if (is(c, "alloc")) {
            pthread_t id;
            work(NULL);
            if (pthread_create(&id, NULL, work, NULL)) fail("pthread_create");
            pthread_join(id, NULL);
        } else {
            forbid(is(c, "prctl"));
        }
        say("done\n");
    }
}
