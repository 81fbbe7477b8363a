/* A signal handler that allocates 1,000 times a second, on an alternate stack, while the main
 * thread computes without allocating and another thread allocates. Handler blocks are of a size
 * of their own; "stop" prints how many there were. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

static atomic_int handled, stop;
static char alternate[64 * 1024];
static volatile uint32_t sum;

NOINLINE static void handler_block(void) {
    void *p = malloc(3001); /* @handler_block */
    KEEP(p);
}
static void on_alarm(int sig) {
    (void)sig;
    int saved = errno;
    handler_block();
    atomic_fetch_add(&handled, 1);
    errno = saved;
}
NOINLINE static void interrupted_work(uint32_t rounds) {
    uint32_t r = 1;
    for (uint32_t i = 0; i < rounds; i++) sum += next_random(&r); /* interrupted somewhere here */
}
static void *allocating(void *nothing) {
    for (uint32_t i = 0; !atomic_load(&stop); i++) {
        void *p = malloc(i % 100 + 1);
        fill(p, i % 100 + 1, i);
        check(p, i % 100 + 1, i);
        free(p);
    }
    return nothing;
}

int main(void) {
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaction(SIGALRM, &action, NULL);
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    say("ready\n");
    for (;;) {
        int wanted;
        if (sscanf(command(), "go %d", &wanted) != 1) continue;
        pthread_t other;
        pthread_sigmask(SIG_BLOCK, &alarms, NULL);
        if (pthread_create(&other, NULL, allocating, NULL)) fail("pthread_create");
        pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
        struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
        setitimer(ITIMER_REAL, &every, NULL);
        while (atomic_load(&handled) < wanted) interrupted_work(100000);
        setitimer(ITIMER_REAL, &never, NULL);
        pthread_sigmask(SIG_BLOCK, &alarms, NULL);
        atomic_store(&stop, 1);
        pthread_join(other, NULL);
        say("done handled=%d\n", atomic_load(&handled));
    }
}
