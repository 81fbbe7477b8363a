/* A thread under a seccomp filter that answers a system call number which does not exist with an error ("errno") or
 * by killing ("kill"), as container runtimes do. It computes sums in registers and sleeps, and notices if either
 * goes wrong. */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>

/* No system call has this number or a higher one. */
#ifdef __mips__
enum { ABOVE = 6000 };
#else
enum { ABOVE = 1000 };
#endif

static atomic_int stop, wrong;
static atomic_ulong rounds;

static void *work(void *unused) {
    (void)unused;
    while (!atomic_load(&stop)) {
        unsigned long sum = 0, n = 100000;
#if defined __x86_64__
        __asm__ volatile("1: add $1, %0\n dec %1\n jnz 1b" : "+a"(sum), "+r"(n));
#elif defined __aarch64__
        __asm__ volatile("1: add %0, %0, #1\n subs %1, %1, #1\n b.ne 1b"
                         : "+r"(sum), "+r"(n) : : "cc");
#elif defined __arm__
        __asm__ volatile("1: add %0, %0, #1\n subs %1, %1, #1\n bne 1b"
                         : "+r"(sum), "+r"(n) : : "cc");
#elif defined __mips__
        __asm__ volatile(".set push\n.set noreorder\n1: daddiu %1, %1, -1\nbnez %1, 1b\n"
                         "daddiu %0, %0, 1\n.set pop" : "+r"(sum), "+r"(n));
#else
        for (; n > 0; n--) __asm__ volatile("" : "+r"(sum) : "0"(sum + 1));
#endif
        if (sum != 100000) atomic_fetch_add(&wrong, 1);
        void *p = malloc(64);
        KEEP(p);
        free(p);
        struct timespec t = {0, 300000};
        if (nanosleep(&t, NULL)) atomic_fetch_add(&wrong, 1);
        atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int kills = argc > 1 && strcmp(argv[1], "kill") == 0;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, ABOVE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, kills ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) fail("seccomp");
    pthread_t id;
    if (pthread_create(&id, NULL, work, NULL)) fail("pthread_create");
    say("ready\n");
    for (;;) {
        if (strcmp(command(), "stop") == 0) {
            atomic_store(&stop, 1);
            pthread_join(id, NULL);
            say("done wrong=%d rounds=%lu\n", atomic_load(&wrong), atomic_load(&rounds));
        }
    }
}
