/* Installs a seccomp filter while it is recorded, which kills it at the first system call that the hook could
 * want to make: reading its own memory, asking for the time or a thread's ID, sleeping. Then it allocates on
 * stacks that the hook has not seen. Commands: "prctl" and "syscall" install the filter, "thread" and "fiber"
 * allocate. */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

enum { BLOCKS = 100, FIBER_STACK = 128 << 10 };

NOINLINE static void *filtered_block(size_t size) {
    void *p = malloc(size); /* @filtered_block */
    KEEP(p);
    return p;
}

static void *work(void *unused) {
    (void)unused;
    for (int i = 0; i < BLOCKS; i++) filtered_block(48);
    return NULL;
}

static ucontext_t back, fiber;
static void on_fiber(void) { work(NULL); }

static void filter(int by_prctl) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_gettid, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_nanosleep, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog all = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all)
                 : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &all))
        fail("seccomp");
}

int main(void) {
    say("ready\n");
    for (;;) {
        const char *c = command();
        if (strcmp(c, "prctl") == 0 || strcmp(c, "syscall") == 0) {
            filter(c[0] == 'p');
        } else if (strcmp(c, "thread") == 0) {
            pthread_t id;
            if (pthread_create(&id, NULL, work, NULL)) fail("pthread_create");
            pthread_join(id, NULL);
        } else if (strcmp(c, "fiber") == 0) {
            void *stack = mmap(NULL, FIBER_STACK, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (stack == MAP_FAILED || getcontext(&fiber)) fail("fiber");
            fiber.uc_stack.ss_sp = stack;
            fiber.uc_stack.ss_size = FIBER_STACK;
            fiber.uc_link = &back;
            makecontext(&fiber, on_fiber, 0);
            if (swapcontext(&back, &fiber)) fail("swapcontext");
        }
        say("done %s\n", c);
    }
}
