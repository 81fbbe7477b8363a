/* Threads that wait in each way the kernel knows, over and over, and count every wait that ended
 * early or with an error: what a stop by a tracer must not cause. "stop" prints the counts. */
#include "common.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>

enum { WAIT_MS = 30, KINDS = 7 };
static const char *const names[KINDS] = {"nanosleep", "poll",   "epoll_wait", "futex",
                                         "select",    "sigtimedwait", "read"};
static atomic_int stop;
static atomic_int waits[KINDS], failed[KINDS], early[KINDS];
static int nothing[2], heartbeat[2];
static int epoll_set;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* True if the wait ended as it should: by its timeout. */
static int wait_once(int kind) {
    struct timespec t = {0, WAIT_MS * 1000000l};
    struct timeval tv = {0, WAIT_MS * 1000l};
    switch (kind) {
    case 0: return nanosleep(&t, NULL) == 0;
    case 1: {
        struct pollfd p = {nothing[0], POLLIN, 0};
        return poll(&p, 1, WAIT_MS) == 0;
    }
    case 2: {
        struct epoll_event e;
        return epoll_wait(epoll_set, &e, 1, WAIT_MS) == 0;
    }
    case 3: {
        int word = 0;
        return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &t, NULL, 0) < 0 && errno == ETIMEDOUT;
    }
    case 4: {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(nothing[0], &set);
        return select(nothing[0] + 1, &set, NULL, NULL, &tv) == 0;
    }
    case 5: {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGRTMAX);
        return sigtimedwait(&set, NULL, &t) < 0 && errno == EAGAIN;
    }
    default: {
        char c;
        return read(heartbeat[0], &c, 1) == 1;
    }
    }
}

static void *work(void *argument) {
    int kind = (int)(intptr_t)argument;
    while (!atomic_load(&stop)) {
        int64_t start = now();
        if (!wait_once(kind)) atomic_fetch_add(&failed[kind], 1);
        if (kind < 6 && now() - start < (WAIT_MS - 1) * 1000000ll) {
            atomic_fetch_add(&early[kind], 1);
        }
        atomic_fetch_add(&waits[kind], 1);
    }
    return NULL;
}

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMAX);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pipe(nothing) || pipe(heartbeat)) fail("pipe");
    epoll_set = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN};
    if (epoll_ctl(epoll_set, EPOLL_CTL_ADD, nothing[0], &e)) fail("epoll_ctl");
    pthread_t ids[KINDS];
    for (long k = 0; k < KINDS; k++) {
        if (pthread_create(&ids[k], NULL, work, (void *)k)) fail("pthread_create");
    }
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (is(word, "beat")) {
            /* the only thing that ends a read */
            if (write(heartbeat[1], "x", 1) != 1) fail("write");
            say("done\n");
        }
        if (!is(word, "stop")) continue;
        atomic_store(&stop, 1);
        if (write(heartbeat[1], "x", 1) != 1) fail("write");
        for (int k = 0; k < KINDS; k++) pthread_join(ids[k], NULL);
        int bad = 0;
        for (int k = 0; k < KINDS; k++) {
            bad += failed[k] + early[k];
            say("%s waits=%d failed=%d early=%d\n", names[k], waits[k], failed[k], early[k]);
        }
        say("done bad=%d\n", bad);
    }
}
