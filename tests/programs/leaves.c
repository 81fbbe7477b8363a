/* A signal handler that leaves a pool's function by siglongjmp, as timeouts do, at any instruction. Commands:
 * "jump", until it has left two hundred times; "calls", a hundred from each of three depths of the stack,
 * undisturbed. */
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

static char pool[1 << 25];
static unsigned long next;
static sigjmp_buf back;
static volatile sig_atomic_t armed, left;

NOINLINE void *pool_get(size_t size) {
    unsigned long at = __sync_fetch_and_add(&next, (size + 15) & ~15ul);
    void *p = pool + at % (sizeof pool / 2);
    KEEP(p);
    return p;
}
NOINLINE void pool_put(void *p) {
    static volatile unsigned long count, last;
    count++;
    last = (unsigned long)p;
}

static void on_alarm(int signal) {
    (void)signal;
    if (!armed) return;
    armed = 0;
    left++;
    siglongjmp(back, 1);
}

static void jump(void) {
    struct itimerval on = {{0, 300}, {0, 300}}, off = {{0, 0}, {0, 0}};
    signal(SIGALRM, on_alarm);
    left = 0;
    setitimer(ITIMER_REAL, &on, NULL);
    sigsetjmp(back, 1);
    while (left < 200) {
        armed = 1;
        for (int i = 0; i < 100; i++) pool_put(pool_get(40));
        armed = 0;
    }
    setitimer(ITIMER_REAL, &off, NULL);
}

NOINLINE static void shallow_call(void) {
    void *p = pool_get(48);
    KEEP(p);
    pool_put(p);
}
NOINLINE static void deep_call(void) {
    char room[300];
    char *all = memset(room, 1, sizeof room);
    KEEP(all);
    void *p = pool_get(48);
    KEEP(p);
    pool_put(p);
}
NOINLINE static void deeper_call(void) {
    char room[3000];
    char *all = memset(room, 1, sizeof room);
    KEEP(all);
    void *p = pool_get(48);
    KEEP(p);
    pool_put(p);
}

int main(void) {
    say("ready\n");
    for (;;) {
        const char *c = command();
        if (is(c, "jump")) jump();
        else for (int i = 0; i < 100; i++) {
            deeper_call();
            deep_call();
            shallow_call();
        }
        say("done\n");
    }
}
