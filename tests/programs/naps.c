/* Waits in its first thread. "nap MS WAY" waits for that time, and prints how long it took and 0 if it was not cut short.
 * "wait WAY" waits without an end, until the next line comes, and prints 0 if it was not cut short. The ways are calls that
 * kernels continue differently when a stop has interrupted them. */
#include "common.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>

static atomic_int word;
static int epoll_set;

static long long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

static int nap(const char *way, long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
    /* SYS_futex has times of two words, also where the C library's have more. */
    long words[2] = {ms / 1000, ms % 1000 * 1000000l};
    struct epoll_event e;
    if (is(way, "nanosleep")) return nanosleep(&t, NULL);
    if (is(way, "clock")) return clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    if (is(way, "poll")) return poll(NULL, 0, (int)ms);
    if (is(way, "epoll")) return epoll_wait(epoll_set, &e, 1, (int)ms);
    if (!is(way, "futex")) fail("no such way: %s", way);
    long r = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, words, NULL, 0);
    return r < 0 && errno == ETIMEDOUT ? 0 : -1;
}

static void *wakes(void *unused) {
    command();
    atomic_store(&word, 1);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return unused;
}

static int wait_for_line(const char *way) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    struct epoll_event e;
    int is_futex = is(way, "futex");
    if (!is_futex && !is(way, "poll") && !is(way, "epoll")) fail("no such way: %s", way);
    pthread_t waker;
    if (is_futex && pthread_create(&waker, NULL, wakes, NULL)) fail("pthread_create");
    say("going\n");
    if (!is_futex) {
        int ready = is(way, "poll") ? poll(&input, 1, -1) : epoll_wait(epoll_set, &e, 1, -1);
        command();
        return ready == 1 ? 0 : -1;
    }
    long r = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    int woken = r == 0 && atomic_load(&word) == 1;
    pthread_join(waker, NULL);
    atomic_store(&word, 0);
    return woken ? 0 : -1;
}

int main(void) {
    struct epoll_event input = {.events = EPOLLIN};
    epoll_set = epoll_create1(0);
    if (epoll_set < 0 || epoll_ctl(epoll_set, EPOLL_CTL_ADD, 0, &input)) fail("epoll: %d", errno);
    say("ready\n");
    for (;;) {
        long ms;
        char line[64], way[16];
        snprintf(line, sizeof line, "%s", command());
        if (sscanf(line, "nap %ld %15s", &ms, way) == 2) {
            say("going\n");
            long long began = now_ms();
            int cut = nap(way, ms);
            say("done %lld %d\n", now_ms() - began, cut);
        } else if (sscanf(line, "wait %15s", way) == 1) {
            say("done %d\n", wait_for_line(way));
        }
    }
}
