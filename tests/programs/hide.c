/* Blocks whose only pointer stands where a scan of memory may not look for it (`held_...`), and some that nothing holds
 * (`lost_...`). Each kind is allocated by a function of its own. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __GLIBC__
#include <ucontext.h>
#endif

struct node {
    struct node *next;
    long value[7];
};

/* Allocates a node; the caller, which is not inlined, names the kind. */
#define KIND(name)                                          \
    NOINLINE static struct node *name(void) {               \
        struct node *n = calloc(1, sizeof *n);              \
        KEEP(n);                                            \
        return n;                                           \
    }

KIND(held_by_epoll) KIND(held_by_timer) KIND(held_without_access) KIND(held_in_huge) KIND(held_in_read_only)
KIND(held_in_private_file) KIND(held_in_moved) KIND(held_by_key) KIND(held_in_thread_local) KIND(held_by_movers)
KIND(lost_plain)

enum { EACH = 20, MOVED = 64, BIG = 4 << 20 };

static volatile int go_on = 1, ready;
static int gate[2];
static pthread_key_t key;
static __thread struct node *volatile thread_local;
static struct node *volatile *places[2];
static struct node *volatile if_no_timers;
static struct node **moved;

static void *map(size_t len) {
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    return p;
}

/* Waits until the end. */
NOINLINE static void wait_here(void) {
    char c;
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    while (read(gate[0], &c, 1) < 0 && errno == EINTR) {}
}

#ifdef __GLIBC__
struct fiber {
    ucontext_t back, own;
    char stack[64 << 10];
};
KIND(held_on_fiber) KIND(held_on_heap_fiber) KIND(held_on_current) KIND(held_on_original) KIND(lost_on_fiber)
NOINLINE static struct fiber *held_fiber(void) {
    struct fiber *f = calloc(1, sizeof *f);
    KEEP(f);
    return f;
}
NOINLINE static struct fiber *lost_fiber(void) {
    struct fiber *f = calloc(1, sizeof *f);
    KEEP(f);
    return f;
}
static struct fiber *volatile current, *volatile heap_fiber;
static struct node *(*volatile make)(void);

NOINLINE static void start(struct fiber *f, void (*run)(void)) {
    getcontext(&f->own);
    f->own.uc_stack.ss_sp = f->stack;
    f->own.uc_stack.ss_size = sizeof f->stack;
    f->own.uc_link = NULL;
    makecontext(&f->own, run, 0);
    current = f;
    swapcontext(&f->back, &f->own);
}

static void suspends(void) {
    struct node *volatile n = make();
    struct fiber *f = current;
    current = NULL;
    swapcontext(&f->own, &f->back);
    n->value[0] = 1;
}

static void waits(void) {
    struct node *volatile n = held_on_current();
    struct fiber *volatile f = current;
    current = NULL;
    wait_here();
    n->value[0] = 1;
    setcontext(&f->back);
}

static void *on_fiber(void *unused) {
    (void)unused;
    struct node *volatile n = held_on_original();
    start(map(sizeof(struct fiber)), waits);
    n->value[0] = 1;
    return NULL;
}

NOINLINE static void lose_fiber(void) {
    make = lost_on_fiber;
    start(lost_fiber(), suspends);
}
#endif

#if defined(__x86_64__)
KIND(held_in_vector) KIND(held_in_signal_frame) KIND(held_in_red_zone) KIND(lost_below_stack)
NOINLINE static void *held_signal_stack(void) {
    void *p = malloc(64 << 10);
    KEEP(p);
    return p;
}

/* Waits in a system call with a pointer in a vector register, and nowhere else. */
static void *in_vector(void *unused) {
    (void)unused;
    struct node *n = held_in_vector();
    char c;
    long r;
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    __asm__ volatile("movq %1, %%xmm13\n\txorl %k1, %k1\n\tsyscall\n\tmovq %%xmm13, %1"
                     : "=a"(r), "+b"(n) : "0"(0L), "D"((long)gate[0]), "S"(&c), "d"(1L)
                     : "rcx", "r11", "xmm13", "memory");
    (void)r;
    n->value[0] = 1;
    KEEP(n);
    return NULL;
}

/* Waits in a system call with a pointer in the red zone, and with old ones below it. */
static void *below_stack(void *unused) {
    (void)unused;
    /* The allocator has a pointer to the end of its last block, and leaves in the red zone what this function keeps. */
    uintptr_t lost = ~(uintptr_t)lost_below_stack();
    struct node *held = held_in_red_zone();
    char c;
    long r;
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    __asm__ volatile("notq %2\n\tmovq %1, -120(%%rsp)\n\tmovq %2, -200(%%rsp)\n\tmovq %2, -440(%%rsp)\n\t"
                     "xorl %k1, %k1\n\txorl %k2, %k2\n\tsyscall\n\tmovq -120(%%rsp), %1"
                     : "=a"(r), "+b"(held), "+r"(lost) : "0"(0L), "D"((long)gate[0]), "S"(&c), "d"(1L)
                     : "rcx", "r11", "memory");
    (void)r;
    held->value[0] = 1;
    KEEP(held);
    return NULL;
}

static void handler(int signal) {
    (void)signal;
    wait_here();
}

/* Is interrupted by a signal, on a stack of its own, with a pointer in a register. */
static void *interrupted(void *unused) {
    (void)unused;
    stack_t own = {.ss_sp = held_signal_stack(), .ss_size = 64 << 10};
    sigaltstack(&own, NULL);
    own.ss_sp = NULL;
    KEEP(own.ss_sp);
    struct node *n = held_in_signal_frame();
    raise(SIGUSR1);
    n->value[0] = 1;
    KEEP(n);
    return NULL;
}
#endif

/* Moves pointers from one place to the other all the time, through a register; another thread moves them back. */
static void *mover(void *to) {
    int from = to == NULL;
    while (go_on) {
        for (int i = 0; i < MOVED; i++) {
            struct node *p = __atomic_exchange_n(&places[from][i], NULL, __ATOMIC_SEQ_CST);
            if (p) __atomic_store_n(&places[!from][i], p, __ATOMIC_SEQ_CST);
        }
        usleep(20);
    }
    return NULL;
}

static void *flood(void *unused) {
    (void)unused;
    while (go_on) {
        void *p = malloc(64);
        KEEP(p);
        free(p);
    }
    return NULL;
}

NOINLINE static void hold_in_kernel(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = held_by_epoll()};
    int epoll = epoll_create1(0);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd(0, 0), &event) != 0) fail("epoll_ctl");
    struct sigevent signal;
    memset(&signal, 0, sizeof signal);
    signal.sigev_notify = SIGEV_SIGNAL;
    signal.sigev_signo = SIGUSR2;
    signal.sigev_value.sival_ptr = held_by_timer();
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &signal, &timer) != 0) fail("timer_create");
    /* A kernel may be built without a list of timers. */
    if (access("/proc/self/timers", R_OK) != 0) if_no_timers = signal.sigev_value.sival_ptr;
}

NOINLINE static void hold_in_mappings(void) {
    struct node **p = map(4096);
    p[7] = held_without_access();
    mprotect(p, 4096, PROT_NONE);
    p = map(BIG);
    madvise(p, BIG, MADV_HUGEPAGE);
    p[BIG / sizeof *p / 2] = held_in_huge();
    int fd = memfd_create("two", 0);
    if (fd < 0 || ftruncate(fd, 4096) != 0) fail("memfd");
    struct node **w = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct node *volatile *r = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    w[9] = held_in_read_only();
    if (!r[9]) fail("shared memory");
    munmap(w, 4096);
    close(fd);
    fd = open("/proc/self/exe", O_RDONLY);
    p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    p[11] = held_in_private_file();
    close(fd);
    moved = map(8192);
    moved[13] = held_in_moved();
    moved = mremap(moved, 8192, 1 << 20, MREMAP_MAYMOVE);
    moved = NULL;
}

NOINLINE static void hold_by_thread(void) {
    pthread_setspecific(key, held_by_key());
    thread_local = held_in_thread_local();
    for (int i = 0; i < MOVED; i++) places[0][i] = held_by_movers();
}

NOINLINE static void lose(void) {
    for (int i = 0; i < EACH; i++) {
        struct node *n = lost_plain();
        KEEP(n);
    }
}

NOINLINE static void overwrite(void) {
    volatile char much[32 << 10];
    for (size_t i = 0; i < sizeof much; i++) much[i] = 0;
}

int main(void) {
    pthread_t threads[8];
    int n = 0, waiting = 0;
    places[0] = map(BIG), places[1] = map(BIG);
    if (pipe(gate) != 0 || pthread_key_create(&key, NULL) != 0) fail("pipe or key");
    say("ready %d\n", (int)getpid());
    for (;;) {
        const char *line = command();
        if (is(line, "begin")) {
            hold_in_kernel();
            hold_in_mappings();
            hold_by_thread();
            lose();
#ifdef __GLIBC__
            make = held_on_fiber;
            start(map(sizeof(struct fiber)), suspends);
            make = held_on_heap_fiber;
            heap_fiber = held_fiber();
            start(heap_fiber, suspends);
            lose_fiber();
            pthread_create(&threads[n++], NULL, on_fiber, NULL), waiting++;
#endif
#if defined(__x86_64__)
            struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
            sigaction(SIGUSR1, &action, NULL);
            pthread_create(&threads[n++], NULL, in_vector, NULL), waiting++;
            pthread_create(&threads[n++], NULL, interrupted, NULL), waiting++;
            pthread_create(&threads[n++], NULL, below_stack, NULL), waiting++;
#endif
            pthread_create(&threads[n++], NULL, mover, NULL);
            pthread_create(&threads[n++], NULL, mover, &gate);
            while (__atomic_load_n(&ready, __ATOMIC_SEQ_CST) < waiting) usleep(1000);
            overwrite();
            say("done\n");
        } else if (is(line, "flood")) {
            pthread_create(&threads[n++], NULL, flood, NULL);
            say("done\n");
        } else if (is(line, "end")) {
            go_on = 0;
            for (int i = 0; i < waiting; i++)
                if (write(gate[1], "x", 1) != 1) fail("write");
            for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
            say("done\n");
        } else {
            fail("what is %s?", line);
        }
    }
}
