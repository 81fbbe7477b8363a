/* As toggle.c's "alloc" ("go": five blocks of 128 bytes), after one hardening: "mdwe" (memory can't become
 * executable), "undumpable", "strict" (seccomp: read, write, exit only), "nosys" (a filter that hides the newer
 * system calls). */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void *blocks[64];
static int count;

NOINLINE static void *block(void) {
    void *p = malloc(128); /* @locked_block */
    KEEP(p);
    return p;
}

static void forget_new_calls(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        /* The calls from 5.1 on, which have the same numbers everywhere, apart from the first number: pidfd_open,
         * close_range, openat2, pidfd_getfd. ARM has old calls of its own with much higher numbers. */
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_pidfd_send_signal, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0xf0000, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) fail("seccomp");
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    free(malloc(1));
    if (is(how, "mdwe") && prctl(65, 1, 0, 0, 0)) {
        say("ready unsupported\n");
        command();
    }
    if (is(how, "undumpable") && prctl(PR_SET_DUMPABLE, 0)) fail("PR_SET_DUMPABLE");
    if (is(how, "nosys")) {
        forget_new_calls();
        if (argc > 2) {
            execv(argv[2], argv + 2);
            fail("execv");
        }
    }
    say("ready\n");
    if (is(how, "strict") && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) fail("strict");
    for (;;) {
        if (!is(command(), "go")) continue;
        for (volatile int i = 0; i < 5; i++) {
            blocks[count] = block();
            fill(blocks[count], 128, (uint32_t)count);
            count++;
        }
        say("done\n");
    }
}
