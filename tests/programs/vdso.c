/* A timer's handler allocates while the program asks for the time, which is done in the kernel's own page of code
 * (the vDSO). "go N" ends after N blocks of 7,001 bytes that were allocated over an instruction of that page; blocks
 * over other code have 5,003. */
#include "common.h"
#include <signal.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

static uintptr_t page_start, page_end;
static volatile int over_page, others;

static uintptr_t interrupted(const ucontext_t *c) {
#if defined(__x86_64__)
    return (uintptr_t)c->uc_mcontext.gregs[REG_RIP];
#elif defined(__arm__)
    return c->uc_mcontext.arm_pc;
#else
    return (uintptr_t)c->uc_mcontext.pc;
#endif
}

NOINLINE static void page_block(void) {
    void *p = malloc(7001); /* @page_block */
    KEEP(p);
}
NOINLINE static void other_block(void) {
    void *p = malloc(5003); /* @other_block */
    KEEP(p);
}

static void on_alarm(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info;
    int saved = errno;
    uintptr_t pc = interrupted(context);
    if (pc >= page_start && pc < page_end) {
        page_block();
        over_page++;
    } else {
        other_block();
        others++;
    }
    errno = saved;
}

/* Returns the seconds; all reading of the time is done here. Neither allocates nor frees. */
NOINLINE static long ask_for_time(void) {
    struct timespec t = {0, 0};
    for (int i = 0; i < 1000; i++) clock_gettime(CLOCK_MONOTONIC, &t);
    return (long)t.tv_sec;
}

static void find_page(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        if (strstr(line, "[vdso]") && sscanf(line, "%zx-%zx", &from, &to) == 2) page_start = from, page_end = to;
    }
    if (!page_start) fail("no vDSO");
    fclose(maps);
}

int main(void) {
    find_page();
    struct sigaction action = {.sa_sigaction = on_alarm, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigaction(SIGALRM, &action, NULL);
    say("ready\n");
    for (;;) {
        int n;
        if (sscanf(command(), "go %d", &n) != 1) continue;
        over_page = others = 0;
        struct itimerval every = {{0, 997}, {0, 997}}, never = {{0, 0}, {0, 0}};
        long end = ask_for_time() + 60;
        setitimer(ITIMER_REAL, &every, NULL);
        while (over_page < n && ask_for_time() < end) {}
        setitimer(ITIMER_REAL, &never, NULL);
        say("done page=%d others=%d\n", over_page, others);
    }
}
