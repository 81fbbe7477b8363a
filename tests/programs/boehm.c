/* Threads that keep their data in Boehm's garbage collector, which stops them by a signal and takes everything that
 * their stacks and registers point to for live, while they allocate by malloc on stacks that take prof long to
 * unwind. Each list is reachable from its thread's stack alone, and is checked over and over; objects that the
 * collector frees by mistake are overwritten by others. "go N" collects N times; "filter" installs a seccomp filter
 * on all threads that allows everything. */
#define GC_THREADS
#include "common.h"
#include <gc.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { THREADS = 4, NODES = 64 };
struct node {
    struct node *next;
    uintptr_t mark;
};

static atomic_int stop;
static atomic_ulong rounds;

__attribute__((noinline, noipa, used)) void plain_block(size_t size) {
    void *p = malloc(size); /* @plain_block */
    KEEP(p);
    free(p);
}

#ifdef __x86_64__
/* Calls it in a frame that only an expression describes (rsp + 16 + 0), which needs all registers. */
void odd_block(size_t size);
__asm__(".text\n.type odd_block, @function\nodd_block:\n.cfi_startproc\nsub $8, %rsp\n"
        ".cfi_escape 0x0f, 4, 0x77, 16, 0x30, 0x22\ncall plain_block\nadd $8, %rsp\n"
        ".cfi_def_cfa 7, 8\nret\n.cfi_endproc\n.size odd_block, . - odd_block\n");
#else
#define odd_block plain_block
#endif

NOINLINE static struct node *make(uintptr_t mark) {
    struct node *first = NULL;
    for (int i = 0; i < NODES; i++) {
        struct node *n = GC_MALLOC(sizeof *n);
        n->next = first;
        n->mark = mark ^ (uintptr_t)i;
        first = n;
    }
    return first;
}

NOINLINE static void verify(const struct node *n, uintptr_t mark) {
    for (int i = NODES; i-- > 0; n = n->next) {
        if (!n || n->mark != (mark ^ (uintptr_t)i)) fail("node %d of list %lx is gone", i, (long)mark);
    }
}

static void *work(void *argument) {
    uintptr_t mark = ((uintptr_t)argument + 1) << 20;
    uint32_t random = 2463534242u + (uint32_t)mark;
    while (!atomic_load(&stop)) {
        struct node *list = make(++mark << 8);
        KEEP(list);
        for (int i = 0; i < 50; i++) odd_block(16 + next_random(&random) % 200);
        verify(list, mark << 8);
        atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

static void filter(void) {
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog all = {1, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &all)) fail("seccomp");
}

int main(void) {
    GC_INIT();
    pthread_t ids[THREADS];
    for (long t = 0; t < THREADS; t++) {
        if (GC_pthread_create(&ids[t], NULL, work, (void *)t)) fail("pthread_create");
    }
    say("ready\n");
    for (;;) {
        const char *line = command();
        int collections = 0;
        if (is(line, "filter")) filter();
        if (sscanf(line, "go %d", &collections) != 1 && !is(line, "filter")) break;
        for (int i = 0; i < collections; i++) GC_gcollect();
        say("done rounds=%lu\n", atomic_load(&rounds));
    }
    atomic_store(&stop, 1);
    for (int t = 0; t < THREADS; t++) GC_pthread_join(ids[t], NULL);
}
