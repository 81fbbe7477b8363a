/* Signals that arrive all the time, each accounted for: SIGALRM from a timer of 1 kHz (expirations that
 * found it pending are counted by the kernel), SIGCHLD of children, real-time signals that are queued with a
 * value each to one certain thread of three. "stop" prints what is missing, arrived twice or in the wrong
 * thread. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>

enum { RECEIVERS = 3 };
static atomic_int stop, wrong;
static atomic_long expirations, alarms, notices, children, reaped;
static atomic_int next_value[RECEIVERS];
static int sent[RECEIVERS];
static pthread_t receivers[RECEIVERS];
static _Thread_local int self = -1;

static void on_alarm(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    if (info->si_code != SI_TIMER) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&alarms, 1);
    atomic_fetch_add(&expirations, 1 + info->si_overrun);
}
static void on_child(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    (void)context;
    int saved = errno, status;
    atomic_fetch_add(&notices, 1);
    while (waitpid(-1, &status, WNOHANG) > 0) {
        if (status != 5 << 8) atomic_fetch_add(&wrong, 1);
        atomic_fetch_add(&reaped, 1);
    }
    errno = saved;
}
static void on_value(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    int who = info->si_value.sival_int >> 24, value = info->si_value.sival_int & 0xffffff;
    if (who != self || info->si_code != SI_QUEUE || info->si_pid != getpid()) {
        atomic_fetch_add(&wrong, 1);
        return;
    }
    /* They arrive in the order in which they were sent, each once. */
    if (atomic_fetch_add(&next_value[who], 1) != value) atomic_fetch_add(&wrong, 1);
}

static void *receive(void *argument) {
    self = (int)(intptr_t)argument;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    int epoll = epoll_create1(0);
    volatile uint32_t sum = 1;
    while (!atomic_load(&stop)) {
        struct timespec t = {0, 2000000};
        struct epoll_event e;
        if (self == 0) nanosleep(&t, NULL);
        if (self == 1) epoll_wait(epoll, &e, 1, 2);
        for (int i = 0; self == 2 && i < 100000; i++) sum = sum * 3 + 1;
    }
    return NULL;
}
static void *send_values(void *nothing) {
    while (!atomic_load(&stop)) {
        for (int k = 0; k < RECEIVERS; k++) {
            union sigval v = {.sival_int = k << 24 | (sent[k] & 0xffffff)};
            int e = pthread_sigqueue(receivers[k], SIGRTMIN + 3, v);
            if (e == 0) sent[k]++;
            if (e && e != EAGAIN) fail("sigqueue: %d", e);
        }
        usleep(300);
    }
    return nothing;
}
static void *make_children(void *nothing) {
    while (!atomic_load(&stop)) {
        pid_t pid = fork();
        if (pid == 0) _exit(5);
        if (pid < 0) fail("fork");
        atomic_fetch_add(&children, 1);
        usleep(1000);
    }
    return nothing;
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int main(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t mine;
    sigemptyset(&mine);
    for (int s = SIGRTMIN; s <= SIGRTMAX; s++) sigaddset(&mine, s);
    sigaddset(&mine, SIGALRM);
    sigaddset(&mine, SIGCHLD);
    action.sa_sigaction = on_alarm;
    sigaction(SIGALRM, &action, NULL);
    action.sa_sigaction = on_child;
    sigaction(SIGCHLD, &action, NULL);
    action.sa_sigaction = on_value;
    sigaction(SIGRTMIN + 3, &action, NULL);
    pthread_sigmask(SIG_BLOCK, &mine, NULL);
    pthread_t sender, parent;
    for (long k = 0; k < RECEIVERS; k++) pthread_create(&receivers[k], NULL, receive, (void *)k);
    pthread_create(&sender, NULL, send_values, NULL);
    pthread_create(&parent, NULL, make_children, NULL);
    sigset_t main_only;
    sigemptyset(&main_only);
    sigaddset(&main_only, SIGALRM);
    sigaddset(&main_only, SIGCHLD);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    struct itimerspec every = {{0, 1000000}, {0, 1000000}}, never = {{0, 0}, {0, 0}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer)) fail("timer_create");
    int64_t starting = now();
    timer_settime(timer, 0, &every, NULL);
    int64_t started = now();
    pthread_sigmask(SIG_UNBLOCK, &main_only, NULL);
    say("ready\n");
    while (!is(command(), "stop")) {}
    /* Expirations while the timer is being started or stopped may arrive or not, however long that takes. */
    int64_t before = now();
    timer_settime(timer, 0, &never, NULL);
    int64_t after = now();
    long least = (long)((before - started) / 1000000), most = (long)((after - starting) / 1000000);
    atomic_store(&stop, 1);
    pthread_join(sender, NULL);
    pthread_join(parent, NULL);
    for (int k = 0; k < RECEIVERS; k++) pthread_join(receivers[k], NULL);
    while (atomic_load(&reaped) < atomic_load(&children)) usleep(1000);
    long came = atomic_load(&expirations);
    int missing = 0, values = 0;
    for (int k = 0; k < RECEIVERS; k++) {
        missing += sent[k] - atomic_load(&next_value[k]);
        values += sent[k];
    }
    int timer_wrong = came < least - 2 || came > most + 2;
    say("%s wrong=%d missing=%d expired=%ld of %ld to %ld alarms=%ld children=%ld notices=%ld values=%d\n",
        wrong || missing || timer_wrong ? "done FAILING" : "done OK", atomic_load(&wrong), missing,
        came, least, most, atomic_load(&alarms), atomic_load(&children), atomic_load(&notices), values);
    command();
}
