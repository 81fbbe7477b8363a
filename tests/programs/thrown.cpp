/* Functions that are named to prof, and what may happen in them: exceptions, cancellation, longjmp, arguments on the
 * stack, callers that know which registers they leave alone. Each command says "done" with what was counted. */
#include "common.h"
#include <csetjmp>
#include <pthread.h>

#define NAMED extern "C" __attribute__((noinline, noipa, visibility("default")))

struct Refused {
    size_t size;
};
static char arena[1 << 20] __attribute__((aligned(64)));
static size_t used;
static int destroyed;
static jmp_buf out;

static void *bump(size_t size) {
    void *block = arena + used % (sizeof arena - 65536);
    used += (size + 15) & ~(size_t)15;
    return block;
}

struct Guard {
    size_t value;
    explicit Guard(size_t v) : value(v) {}
    ~Guard() {
        if (value == 77) destroyed++;
    }
};

NAMED void *pool_new(size_t size) {
    Guard guard(77);
    KEEP(guard.value);
    if (size > 1000) throw Refused{size};
    return bump(size);
}
NAMED void *pool_grow(void *block, size_t size) {
    void *p = pool_new(size); /* which is named, too */
    KEEP(block);
    return p;
}
NAMED void pool_put(void *block) {
    if (!block) throw Refused{1};
    KEEP(block);
}
NAMED void *pool_jump(size_t size) {
    if (size > 1000) longjmp(out, 1);
    return bump(size);
}
struct Large {
    long word[6];
};
NAMED void *pool_many(long a, size_t size, long c, long d, long e, long f, long g, Large h, double x, int last) {
    if (a + c + d + e + f + g != 21 || h.word[0] + h.word[5] != 105 || x != 2.5 || last != -9) fail("arguments");
    return bump(size);
}
NAMED void *pool_wait(size_t size) {
    char c;
    say("waiting\n");
    if (read(0, &c, 1) != 1) _exit(0);
    return bump(size);
}
static void cleaned(void *arg) { *(int *)arg = 1; }
static void *cancelled_thread(void *arg) {
    int volatile local = 5;
    pthread_cleanup_push(cleaned, arg);
    KEEP(arg);
    pool_wait(32);
    pthread_cleanup_pop(0);
    return (void *)(long)local;
}

/* Throws through it and catches outside, with values kept in all registers that are preserved. */
NOINLINE static int catches(size_t size, long a, long b, long c, long d) {
    long e = a * 3, f = b * 5;
    int caught = 0;
    for (int i = 0; i < 3; i++) {
        try {
            Guard guard((size_t)a);
            void *p = i == 1 ? pool_grow(arena, size) : pool_new(size);
            KEEP(p);
        } catch (const Refused &r) {
            if (r.size != size) fail("what was thrown");
            caught++;
        }
        KEEP(e);
        if (e != a * 3 || f != b * 5 || c + d != 11) fail("registers after an exception");
    }
    try {
        pool_put(size > 1000 ? nullptr : arena);
    } catch (const Refused &) {
        caught++;
    }
    return caught;
}
NOINLINE static int jumps(void) {
    if (setjmp(out)) return 1;
    pool_jump(2000);
    return 0;
}

#ifdef __x86_64__
/* Touches nothing but rax and the flags, as a function of the same file may that gcc knows; and a caller that keeps values
 * in all other registers. */
extern "C" void *quiet_alloc(size_t);
extern "C" void call_quiet(uint64_t *before, uint64_t *after, long misaligned);
__asm__(".text\n.globl quiet_alloc\n.type quiet_alloc,@function\n.p2align 4\nquiet_alloc:\n"
        "lea arena_at(%rip), %rax\n"
        "mov (%rax), %rax\n"
        "nopl 0(%rax)\n"
        "ret\n.size quiet_alloc, .-quiet_alloc\n"
        ".p2align 4\ncall_quiet:\n"
        "push %rbp\nmov %rsp, %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "push %rsi\n"
        "sub %rdx, %rsp\n"
        "movups 128(%rdi), %xmm0\nmovups 144(%rdi), %xmm1\nmovups 160(%rdi), %xmm2\nmovups 176(%rdi), %xmm3\n"
        "movups 192(%rdi), %xmm4\nmovups 208(%rdi), %xmm5\nmovups 224(%rdi), %xmm6\nmovups 240(%rdi), %xmm7\n"
        "movups 256(%rdi), %xmm8\nmovups 272(%rdi), %xmm9\nmovups 288(%rdi), %xmm10\nmovups 304(%rdi), %xmm11\n"
        "movups 320(%rdi), %xmm12\nmovups 336(%rdi), %xmm13\nmovups 352(%rdi), %xmm14\nmovups 368(%rdi), %xmm15\n"
        "mov 8(%rdi), %rbx\nmov 16(%rdi), %rcx\nmov 24(%rdi), %rdx\nmov 32(%rdi), %rsi\n"
        "mov 48(%rdi), %r8\nmov 56(%rdi), %r9\nmov 64(%rdi), %r10\nmov 72(%rdi), %r11\n"
        "mov 80(%rdi), %r12\nmov 88(%rdi), %r13\nmov 96(%rdi), %r14\nmov 104(%rdi), %r15\n"
        "mov 40(%rdi), %rdi\n"
        "call quiet_alloc\n"
        "mov -48(%rbp), %rax\n"
        "mov %rbx, 8(%rax)\nmov %rcx, 16(%rax)\nmov %rdx, 24(%rax)\nmov %rsi, 32(%rax)\nmov %rdi, 40(%rax)\n"
        "mov %r8, 48(%rax)\nmov %r9, 56(%rax)\nmov %r10, 64(%rax)\nmov %r11, 72(%rax)\n"
        "mov %r12, 80(%rax)\nmov %r13, 88(%rax)\nmov %r14, 96(%rax)\nmov %r15, 104(%rax)\n"
        "movups %xmm0, 128(%rax)\nmovups %xmm1, 144(%rax)\nmovups %xmm2, 160(%rax)\nmovups %xmm3, 176(%rax)\n"
        "movups %xmm4, 192(%rax)\nmovups %xmm5, 208(%rax)\nmovups %xmm6, 224(%rax)\nmovups %xmm7, 240(%rax)\n"
        "movups %xmm8, 256(%rax)\nmovups %xmm9, 272(%rax)\nmovups %xmm10, 288(%rax)\nmovups %xmm11, 304(%rax)\n"
        "movups %xmm12, 320(%rax)\nmovups %xmm13, 336(%rax)\nmovups %xmm14, 352(%rax)\nmovups %xmm15, 368(%rax)\n"
        "lea -40(%rbp), %rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
extern "C" {
char *arena_at = arena;
}
static int registers(void) {
    for (int round = 0; round < 200; round++) {
        uint64_t before[48] = {}, after[48] = {};
        uint32_t seed = 99u + (uint32_t)round;
        for (int i = 1; i < 48; i++) {
            if (i >= 14 && i < 16) continue;
            before[i] = (uint64_t)next_random(&seed) << 32 | next_random(&seed);
        }
        before[5] = 40; /* the size */
        call_quiet(before, after, round % 2 ? 8 : 0);
        for (int i = 1; i < 48; i++) {
            if (before[i] != after[i]) fail("register %d is %lx instead of %lx", i, (long)after[i], (long)before[i]);
        }
    }
    return 200;
}
#else
static int registers(void) { return 0; }
#endif

int main(void) {
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "go")) {
            int caught = 0, jumped = 0;
            destroyed = 0;
            for (long i = 0; i < 50; i++) {
                caught += catches(2000, 7, i, 4, 7);
                jumped += jumps();
                if (catches(100, 7, i, 4, 7)) fail("nothing was to be thrown");
                Large h = {{100, 1, 2, 3, 4, 5}};
                void *p = pool_many(1, 200, 2, 3, 4, 5, 6, h, 2.5, -9);
                KEEP(p);
                pool_put(p);
                p = pool_jump(10);
                KEEP(p);
            }
            say("done %d caught %d jumped %d destroyed\n", caught, jumped, destroyed);
        } else if (is(line, "registers")) {
            say("done %d\n", registers());
        } else if (is(line, "cancel")) {
            pthread_t thread;
            int clean = 0;
            void *result = nullptr;
            if (pthread_create(&thread, nullptr, cancelled_thread, &clean)) fail("pthread_create");
            usleep(20000);
            pthread_cancel(thread);
            pthread_join(thread, &result);
            say("done %s %d\n", result == PTHREAD_CANCELED ? "cancelled" : "not cancelled", clean);
        } else if (is(line, "wait")) {
            void *p = pool_wait(64);
            KEEP(p);
            say("done waiting\n");
        }
    }
}
