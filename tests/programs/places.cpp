// Allocations in unusual places, each with a known number of calls: handlers of pthread_atfork, destructors of
// thread-local objects and of pthread keys, after a stack overflow that was handled on an alternate stack, fibers on
// stacks of 16 KiB, constructors that throw, operator new that fails, and handlers of atexit, which are checked at
// "quit".
#include "common.h"
#include <new>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>

enum { ROUNDS = 20 };

static void use(void *p, size_t size, uint32_t seed) {
    if (!p) fail("no memory");
    fill(p, size, seed);
    check(p, size, seed);
    free(p);
}

NOINLINE static void prepare_block() { use(malloc(4001), 4001, 1); } // @prepare_block
NOINLINE static void parent_block() { use(malloc(4002), 4002, 2); }  // @parent_block
static void child_block() { use(malloc(4003), 4003, 3); }
static int forks() {
    int good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) _exit(i);
        good += waitpid(pid, &status, 0) == pid && status == i << 8;
    }
    return good;
}

static int destroyed;
NOINLINE static void tls_block() { use(malloc(4004), 4004, 4); } // @tls_block
NOINLINE static void key_block() { use(malloc(4005), 4005, 5); } // @key_block
struct Late {
    int used = 0;
    ~Late() {
        tls_block();
        destroyed++;
    }
};
static thread_local Late late;
static pthread_key_t key;
static void key_destructor(void *) {
    key_block();
    destroyed++;
}
static void *short_thread(void *) {
    late.used++;
    pthread_setspecific(key, &key);
    return nullptr;
}
static int destructors() {
    destroyed = 0;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t id;
        if (pthread_create(&id, nullptr, short_thread, nullptr)) fail("pthread_create");
        pthread_join(id, nullptr);
    }
    return destroyed;
}

static sigjmp_buf surface;
static char alternate[64 * 1024];
static volatile int overflows;
NOINLINE static void overflow_block() { use(malloc(4006), 4006, 6); } // @overflow_block
NOINLINE static void after_block() { use(malloc(4007), 4007, 7); }    // @after_block
static void on_overflow(int) {
    overflow_block();
    overflows = overflows + 1;
    siglongjmp(surface, 1);
}
NOINLINE static int sink(volatile char *above, bool allocates) {
    volatile char here[512];
    here[0] = above[0];
    // A block from the thread's own cache in libc, without a lock: the stack may overflow here.
    if (allocates) free(malloc(24));
    return sink(here, allocates) + here[0];
}
static void *sinking(void *allocates) {
    stack_t stack = {};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof alternate;
    sigaltstack(&stack, nullptr);
    free(malloc(24));
    for (volatile int i = 0; i < ROUNDS; i++) {
        char top = 1;
        if (sigsetjmp(surface, 1) == 0) sink(&top, allocates != nullptr);
        after_block();
    }
    return nullptr;
}
static int overflow() {
    overflows = 0;
    for (uintptr_t allocates = 0; allocates < 2; allocates++) {
        // A guard page lies beyond the end of its stack.
        pthread_attr_t attributes;
        pthread_t id;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 256 * 1024);
        if (pthread_create(&id, &attributes, sinking, reinterpret_cast<void *>(allocates))) {
            fail("pthread_create");
        }
        pthread_join(id, nullptr);
        pthread_attr_destroy(&attributes);
    }
    return overflows;
}

static ucontext_t outside, fiber[2];
static int switches;
NOINLINE static void fiber_block(int which) { use(malloc(4008), 4008, uint32_t(which)); } // @fiber_block
static void fiber_main(int which) {
    for (;;) {
        fiber_block(which);
        switches++;
        if (which == 0) {
            swapcontext(&fiber[0], &fiber[1]);
        } else {
            swapcontext(&fiber[1], &outside);
        }
    }
}
static int fibers() {
    switches = 0;
    for (int i = 0; i < ROUNDS; i++) swapcontext(&outside, &fiber[0]);
    return switches;
}
static void make_fibers() {
    for (int i = 0; i < 2; i++) {
        getcontext(&fiber[i]);
        void *stack = mmap(nullptr, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        fiber[i].uc_stack.ss_sp = stack;
        fiber[i].uc_stack.ss_size = 16384;
        fiber[i].uc_link = &outside;
        makecontext(&fiber[i], reinterpret_cast<void (*)()>(fiber_main), 1, i);
    }
}

struct Thrower {
    char bytes[4009];
    Thrower() { throw 42; }
};
struct Failing {
    static void *operator new(size_t) { throw std::bad_alloc(); }
};
static int asked;
static void no_more() {
    asked++;
    std::set_new_handler(nullptr);
}
NOINLINE static void huge(int depth) {
    volatile size_t size = ~(~size_t(0) >> 1); // more than any address space
    if (depth > 0) return huge(depth - 1);
    void *p = ::operator new(size);
    KEEP(p);
}
static int exceptions() {
    int caught = 0;
    for (int i = 0; i < ROUNDS; i++) {
        try {
            KEEP(caught);
            auto *t = new Thrower; // @thrower
            KEEP(t);
        } catch (int n) {
            caught += n == 42;
        }
        try {
            auto *f = new Failing;
            KEEP(f);
        } catch (const std::bad_alloc &) {
            caught++;
        }
        asked = 0;
        std::set_new_handler(no_more);
        try {
            huge(i);
        } catch (const std::bad_alloc &) {
            caught += asked == 1;
        }
    }
    return caught;
}

NOINLINE static void exit_block() { use(malloc(4010), 4010, 10); } // @exit_block
static void at_exit() {
    exit_block();
    say("exit OK\n");
}

int main() {
    static const struct { const char *name; int (*run)(); int wanted; } all[] = {
        {"atfork", forks, ROUNDS},          {"destructors", destructors, 2 * ROUNDS},
        {"overflow", overflow, 2 * ROUNDS}, {"fibers", fibers, 2 * ROUNDS},
        {"exceptions", exceptions, 3 * ROUNDS}};
    struct sigaction action = {};
    action.sa_handler = on_overflow;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    pthread_atfork(prepare_block, parent_block, child_block);
    pthread_key_create(&key, key_destructor);
    atexit(at_exit);
    make_fibers();
    say("ready\n");
    for (;;) {
        const char *word = command();
        for (const auto &one : all) {
            if (!is(word, one.name)) continue;
            int got = one.run();
            if (got != one.wanted) fail("%s: %d instead of %d", one.name, got, one.wanted);
            say("done %s %d\n", one.name, got);
        }
    }
}
