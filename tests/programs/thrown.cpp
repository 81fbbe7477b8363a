/* Functions that are named to prof, and what may happen in them: exceptions, cancellation, longjmp, arguments on the
 * stack, callers that rely on preserved registers. Each command prints "done" with its counts. */
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
#ifdef __x86_64__
/* Its first instructions contain a call, out of which an exception comes. */
extern "C" void *pool_calls(size_t size);
asm(".text\n.globl pool_calls\n.type pool_calls, @function\npool_calls:\n.cfi_startproc\n"
    "push %rbx\n.cfi_adjust_cfa_offset 8\n.cfi_offset %rbx, -16\ncall pool_new\n"
    "pop %rbx\n.cfi_adjust_cfa_offset -8\n.cfi_restore %rbx\nret\n.cfi_endproc\n"
    ".size pool_calls, . - pool_calls\n");
#else
NAMED void *pool_calls(size_t size) {
    return pool_new(size);
}
#endif
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

/* Throws through it and catches outside, with values in all preserved registers. */
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

#include "quiet.h"
extern "C" {
char *arena_at = arena;
}
static int registers(void) {
    for (int round = 0; round < 200; round++) {
        static uint32_t before[QUIET_WORDS], after[QUIET_WORDS];
        uint32_t seed = 99u + (uint32_t)round;
        for (int i = 0; i < QUIET_WORDS; i++) before[i] = next_random(&seed);
        memset(after, 0, sizeof after);
        quiet_prepare(before);
        call_quiet(before, after, round % 2 ? 8 : 0);
        for (int i = 0; i < QUIET_WORDS; i++) {
            if (!quiet_is_free(i) && before[i] != after[i])
                fail("word %d is %lx instead of %lx", i, (long)after[i], (long)before[i]);
        }
    }
    return 200;
}

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
        } else if (is(line, "calls")) {
            int caught = 0;
            for (int i = 0; i < 50; i++) {
                try {
                    void *p = pool_calls(i % 2 ? 2000 : 20);
                    KEEP(p);
                } catch (const Refused &) {
                    caught++;
                }
            }
            say("done caught %d\n", caught);
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
