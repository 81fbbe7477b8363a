// Allocates from thousands of different stacks and notes for each the result of glibc's backtrace() at the same place,
// as an oracle for the recorded stacks. "go N SEED": N samples from ordinary code; "async N": N samples from a signal
// handler that interrupts code anywhere; "dump PATH": one line per sample, the size and the return addresses from the
// caller of sample() outwards. On ARM glibc's tables describe calls only, so "contexts PATH" writes, one line per
// sample of "async", the registers of the interrupted code and the words on its stack, for unwinders whose tables
// describe every instruction.
#include "common.h"
#include <alloca.h>
#include <cmath>
#include <execinfo.h>
#include <functional>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <sys/time.h>
#include <time.h>
#ifdef __arm__
#include <sys/ucontext.h>
#endif

enum { MAX_SAMPLES = 8000, MAX_FRAMES = 120 };
struct Sample {
    uint32_t size;
    int frames;
    void *pcs[MAX_FRAMES];
};
static Sample samples[MAX_SAMPLES];
static volatile int taken;
static int wanted, walk_end;
static uint32_t dice = 1;
static int use_backtrace = 1;

// A debugger stops here.
extern "C" NOINLINE void oracle_mark(uint32_t size) { KEEP(size); }

extern "C" NOINLINE void sample() {
    if (taken >= wanted || taken >= walk_end) return;
    uint32_t size = 1 + next_random(&dice) % 4000;
    void *p = malloc(size);
    KEEP(p);
    oracle_mark(size);
    Sample *s = &samples[taken];
    s->size = size;
    if (use_backtrace) s->frames = backtrace(s->pcs, MAX_FRAMES);
    taken = taken + 1;
}

static uint32_t roll(uint32_t n) { return next_random(&dice) % n; }
static void any(int depth);

NOINLINE static void plain(int depth) {
    any(depth - 1);
    KEEP(depth);
}
NOINLINE static void with_alloca(int depth) {
    size_t size = 1 + roll(500);
    char *room = static_cast<char *>(alloca(size));
    memset(room, depth, size);
    KEEP(room);
    any(depth - 1);
    KEEP(room);
}
NOINLINE static long many_arguments(int a, long b, char c, double d, long e, int f, long g, int depth,
                                    long h) {
    any(depth - 1);
    return a + b + c + long(d) + e + f + g + h;
}
NOINLINE static int variadic(int depth, ...) {
    va_list list;
    va_start(list, depth);
    int first = va_arg(list, int);
    any(depth - 1);
    va_end(list);
    return first;
}
NOINLINE static void realigned(int depth) {
    alignas(128) char wide[256];
    memset(wide, depth, sizeof wide);
    char *start = wide;
    KEEP(start);
    if (reinterpret_cast<uintptr_t>(start) % 128) fail("not aligned");
    any(depth - 1);
    KEEP(start);
}
static int compare_depth;
static int compare(const void *a, const void *b) {
    int x = *static_cast<const int *>(a), y = *static_cast<const int *>(b);
    if (roll(4) == 0 && compare_depth > 0) {
        int saved = compare_depth;
        compare_depth = 0;
        any(saved > 3 ? 2 : saved - 1);
        compare_depth = saved;
    }
    return (x > y) - (x < y);
}
NOINLINE static void sorting(int depth) {
    int values[24];
    for (int &v : values) v = int(roll(1000));
    int saved = compare_depth;
    compare_depth = depth - 1;
    qsort(values, 24, sizeof *values, compare);
    int key = values[roll(24)];
    bsearch(&key, values, 24, sizeof *values, compare);
    compare_depth = saved;
    KEEP(key);
}
struct Unwound {
    int depth;
    ~Unwound() { any(depth); }
};
NOINLINE static void throwing(int depth) {
    Unwound note{depth > 3 ? 2 : depth - 1};
    if (roll(3) == 0) throw std::runtime_error("sample");
    any(depth - 1);
    if (roll(3) == 0) throw 17;
}
NOINLINE static void catching(int depth) {
    try {
        throwing(depth - 1);
    } catch (const std::exception &) {
        any(depth - 1);
    } catch (int) {
        sample();
    }
}
struct Base {
    virtual void call(int depth) { any(depth - 1); }
    virtual ~Base() = default;
};
struct Derived : Base {
    void call(int depth) override { Base::call(depth - 1); }
};
static Derived derived;
static void on_usr2(int sig) {
    KEEP(sig);
    any(2);
}
NOINLINE static void signalled(int depth) {
    raise(SIGUSR2);
    KEEP(depth);
}
static void *thread_main(void *argument) {
    any(int(reinterpret_cast<intptr_t>(argument)));
    return nullptr;
}
NOINLINE static void threaded(int depth) {
    pthread_t id;
    if (pthread_create(&id, nullptr, thread_main, reinterpret_cast<void *>(intptr_t(depth)))) {
        fail("pthread_create");
    }
    pthread_join(id, nullptr);
}

// One step of a random walk over all the shapes above; it ends in a sample.
static void any(int depth) {
    if (taken >= wanted || taken >= walk_end) return;
    if (depth <= 0) return sample();
    switch (roll(13)) {
    case 0:
    case 1: return plain(depth);
    case 2: return with_alloca(depth);
    case 3: KEEP(depth); many_arguments(1, 2, 3, 4.5, 5, 6, 7, depth, 8); return;
    case 4: variadic(depth, 3, 4, 5.0); return;
    case 5: return realigned(depth);
    case 6: return sorting(depth);
    case 7: return catching(depth);
    case 8: return derived.call(depth);
    case 9: {
        volatile int n = depth;
        std::function<void()> f = [&n] { any(n - 1); };
        f();
        return;
    }
    case 10: return depth > 8 ? plain(depth) : signalled(depth);
    case 11: return depth % 7 ? plain(depth) : threaded(depth);
    default:
        sample();
        return plain(depth);
    }
}

static volatile double busy_sum;
#ifdef __arm__
enum { STACK_WORDS = 256 };
struct Context {
    uint32_t registers[16], stack[STACK_WORDS];
};
static Context contexts[MAX_SAMPLES];
// The end of main's frame: its return address is below.
static const uint32_t *outermost;

static void note_context(const void *context) {
    if (taken >= wanted || taken >= MAX_SAMPLES) return;
    const mcontext_t *m = &static_cast<const ucontext_t *>(context)->uc_mcontext;
    Context *c = &contexts[taken];
    memcpy(c->registers, &m->arm_r0, sizeof c->registers);
    const uint32_t *sp = reinterpret_cast<const uint32_t *>(m->arm_sp);
    for (int i = 0; i < STACK_WORDS; i++) c->stack[i] = sp + i < outermost ? sp[i] : 0;
}
static void on_alarm(int, siginfo_t *, void *context) {
    int saved = errno;
    note_context(context);
    sample();
    errno = saved;
}
static void dump_contexts(const char *path) {
    FILE *out = fopen(path, "w");
    if (!out) fail("%s", path);
    for (int i = 0; i < taken; i++) {
        for (uint32_t r : contexts[i].registers) fprintf(out, "%x ", r);
        for (uint32_t word : contexts[i].stack) fprintf(out, "%x ", word);
        fprintf(out, "\n");
    }
    fclose(out);
}
#else
static void on_alarm(int) {
    int saved = errno;
    sample();
    errno = saved;
}
#endif
NOINLINE static int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
static int plain_compare(const void *a, const void *b) {
    return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}
// Code that neither allocates nor frees (qsort and throw do), to be interrupted at any instruction by a handler that
// allocates.
NOINLINE static void busy() {
    char text[200];
    int values[16];
    for (int i = 0; i < 200; i++) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        for (int k = 0; k < 16; k++) values[k] = int((t.tv_nsec * (k + 7)) % 1000);
        bsearch(values + 7, values, 16, sizeof *values, plain_compare);
        memset(text, 'a', sizeof text);
        text[values[0] % 199] = 0;
        busy_sum = busy_sum + double(strlen(text)) + std::sin(values[3]) + std::pow(1.01, values[4]);
        snprintf(text, sizeof text, "%d %s", values[5], "x");
        busy_sum = busy_sum + fibonacci(8) + double(getppid());
    }
}

static void dump(const char *path) {
    FILE *out = fopen(path, "w");
    if (!out) fail("%s", path);
    for (int i = 0; i < taken; i++) {
        fprintf(out, "%u", samples[i].size);
        for (int k = 1; k < samples[i].frames; k++) {
            fprintf(out, " %zx", reinterpret_cast<size_t>(samples[i].pcs[k]));
        }
        fprintf(out, "\n");
    }
    fclose(out);
}

int main(int argc, char **) {
    use_backtrace = argc < 2;
    void *warm[4];
    backtrace(warm, 4);
    signal(SIGUSR2, on_usr2);
    struct sigaction action = {};
    action.sa_flags = SA_RESTART;
#ifdef __arm__
    outermost = static_cast<const uint32_t *>(__builtin_dwarf_cfa());
    action.sa_sigaction = on_alarm;
    action.sa_flags |= SA_SIGINFO;
#else
    action.sa_handler = on_alarm;
#endif
    sigaction(SIGALRM, &action, nullptr);
    say("ready\n");
    for (;;) {
        const char *word = command();
        int n;
        unsigned seed;
        if (sscanf(word, "go %d %u", &n, &seed) == 2 && n <= MAX_SAMPLES) {
            taken = 0;
            wanted = n;
            dice = seed;
            while (taken < wanted) {
                walk_end = taken + 8;
                try {
                    any(int(roll(40)));
                } catch (...) {
                }
            }
            say("done %d\n", taken);
        } else if (sscanf(word, "async %d", &n) == 1 && n <= MAX_SAMPLES) {
            taken = 0;
            wanted = walk_end = n;
            struct itimerval every = {{0, 251}, {0, 251}}, never = {};
            setitimer(ITIMER_REAL, &every, nullptr);
            while (taken < wanted) busy();
            setitimer(ITIMER_REAL, &never, nullptr);
            say("done %d\n", taken);
        } else if (strncmp(word, "dump ", 5) == 0) {
            dump(word + 5);
            say("done\n");
#ifdef __arm__
        } else if (strncmp(word, "contexts ", 9) == 0) {
            dump_contexts(word + 9);
            say("done\n");
#endif
        }
    }
}
