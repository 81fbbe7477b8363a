/* A process, or with the argument "worker" one of its threads, in seccomp's strict mode: the kernel kills for any system call
 * but read, write, exit and sigreturn, and forbids AMD64's counter. */
#include "common.h"
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

NOINLINE static void *strictly(void) {
    void *p = malloc(64);
    KEEP(p);
    return p;
}

static void work(void) {
    for (int i = 0; i < 1000; i++) free(strictly());
}

static void *worker(void *unused) {
    (void)unused;
    /* The allocator's calls come before. */
    work();
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) fail("prctl: %s", strerror(errno));
    say("ready\n");
    char c;
    for (;;) {
        work();
        if (read(0, &c, 1) <= 0) syscall(SYS_exit, 0);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && is(argv[1], "worker")) {
        pthread_t t;
        if (pthread_create(&t, NULL, worker, NULL) != 0) return 1;
        pthread_join(t, NULL);
        return 0;
    }
    work();
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "prctl") && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) fail("prctl");
        if (is(line, "syscall") && syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL) != 0) {
            fail("seccomp");
        }
        work();
        say("done\n");
    }
}
