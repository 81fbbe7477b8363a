// Pointers move all the time between memory that a fork copies, shares, leaves out and clears, and the program counts what
// it is told of children.
#include "common.h"
#include <alloca.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define BLOCKS 100
#define LOST 50
#define PLACES 4
#define PAGE 65536
#define BIG ((size_t)64 << 20)

static void *volatile *places[PLACES]; /* where the pointers are, in turn */
static volatile sig_atomic_t told, reaped;

static void of_child(int signal) {
    (void)signal;
    told++;
}

NOINLINE static void *held_block(void) {
    void *p = malloc(100);
    KEEP(p);
    return p;
}

NOINLINE static void lost_block(void) {
    void *p = malloc(200);
    KEEP(p);
}

static void *map(int kind) {
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | kind, -1, 0);
    if (at == MAP_FAILED) {
        fail("mmap: %d", errno);
    }
    return at;
}

static void *move(void *none) {
    for (;;) {
        for (int from = 0; from < PLACES; from++) {
            int to = (from + 1) % PLACES;
            for (int i = 0; i < BLOCKS; i++) {
                places[to][i] = places[from][i];
                places[from][i] = NULL;
            }
            usleep(200);
        }
    }
    return none;
}

static void *reap(void *none) {
    for (;;) {
        reaped += waitpid(-1, NULL, WNOHANG) > 0;
        usleep(1000);
    }
    return none;
}

// Forbids `clone` to all threads: who calls it is killed.
static void forbid(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &all)) {
        fail("seccomp: %d", errno);
    }
}

// Returns whether the kernel has what is asked for.
static int watch(void) {
    long fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {
        .range = {(unsigned long)map(MAP_PRIVATE), PAGE},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    return fd >= 0 && !ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &range);
}

NOINLINE static void begin(void) {
    pthread_t thread;
    for (int i = 0; i < BLOCKS; i++) {
        places[0][i] = held_block();
    }
    for (int i = 0; i < LOST; i++) {
        lost_block();
    }
    // What is left of them on the stack is overwritten.
    void *rest = alloca(4096);
    memset(rest, 1, 4096);
    KEEP(rest);
    pthread_create(&thread, NULL, move, NULL);
    pthread_create(&thread, NULL, reap, NULL);
}

int main(void) {
    struct sigaction action = {.sa_handler = of_child, .sa_flags = SA_RESTART};
    sigaction(SIGCHLD, &action, NULL);
    for (int i = 0; i < PLACES; i++) {
        places[i] = map(i == 1 ? MAP_SHARED : MAP_PRIVATE);
    }
    if (madvise((void *)places[2], PAGE, MADV_WIPEONFORK) || madvise((void *)places[3], PAGE, MADV_DONTFORK)) {
        fail("madvise: %d", errno);
    }
    say("ready\n");
    for (;;) {
        const char *word = command();
        int done = 1;
        if (is(word, "begin")) {
            begin();
        } else if (is(word, "big")) {
            void *big = malloc(BIG);
            KEEP(big);
            memset(big, 1, BIG);
        } else if (is(word, "children")) {
            say("done: told %d, reaped %d\n", (int)told, (int)reaped);
            continue;
        } else if (is(word, "share")) {
            void *at = mmap(NULL, 5 * BIG, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
            memset(at, 1, 5 * BIG);
        } else if (is(word, "aio")) {
            unsigned long context = 0;
            done = !syscall(SYS_io_setup, 8, &context);
        } else if (is(word, "watch")) {
            done = watch();
        } else if (is(word, "forbid")) {
            forbid();
        } else if (is(word, "unshare")) {
            done = !unshare(CLONE_NEWPID);
        } else if (is(word, "fork")) {
            pid_t child = fork();
            if (child == 0) _exit(0);
            done = child > 0;
        }
        say(done ? "done\n" : "none\n");
    }
}
