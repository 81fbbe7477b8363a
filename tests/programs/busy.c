/* Threads that are inside the allocator, stdio, the dynamic linker, a signal handler or fork, at most about half of the
 * time: each pauses for as long as it has worked, so that the linker is left alone as often on a slow machine as on a fast
 * one, and the first thread is outside of its handler as often.
 * "go" and "park" let them work and stop; "progress" waits until each of them has done its work some more times;
 * "linked" prints how many modules the dynamic linker lists, and a sum of their names. "alloc N" and "free N" as in
 * toggle.c. */
#define _GNU_SOURCE
#include "listed.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 4, EACH = 200 };

#ifdef __GLIBC__
#define LOADED "libresolv.so.2"
#else
#define LOADED "libc.so" /* musl's linker answers with itself, under its lock. */
#endif

static atomic_int working, parked;
static atomic_long rounds[KINDS], handled;
static void *blocks[4096];
static int first, last;

static void allocate(void) {
    void *some[32];
    for (int i = 0; i < EACH; i++) {
        for (int k = 0; k < 32; k++) {
            some[k] = malloc((size_t)(16 + (i * 37 + k * 11) % 3000));
            *(volatile char *)some[k] = 1;
        }
        for (int k = 0; k < 32; k++) free(some[k]);
    }
}

static void print(void) {
    static FILE *to;
    if (!to) to = fopen("/dev/null", "w");
    for (int i = 0; i < EACH * 4; i++) fprintf(to, "%d %s %g\n", i, "a line", i / 3.0);
}

static void load(void) {
    for (int i = 0; i < 4; i++) {
        void *handle = dlopen(LOADED, RTLD_NOW);
        if (!handle) say("FAILED %s\n", dlerror());
        if (dlsym(handle, "no_such_function")) say("FAILED: a symbol\n");
        dlclose(handle);
    }
}

static void fork_one(void) {
    pid_t child = fork();
    if (child == 0) {
        void *p = malloc(100);
        *(volatile char *)p = 1;
        free(p);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) != child) {}
    if (status) say("FAILED: a child ended with %d\n", status);
}

static long microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

static void *work(void *arg) {
    static void (*const all[KINDS])(void) = {allocate, print, load, fork_one};
    long kind = (long)arg;
    for (;;) {
        if (atomic_load(&working)) {
            long begun = microseconds();
            all[kind]();
            long took = microseconds() - begun, pause = kind == 3 ? 20000 : 500;
            atomic_fetch_add(&rounds[kind], 1);
            usleep((useconds_t)(took > pause ? took : pause));
        } else {
            atomic_fetch_add(&parked, 1);
            while (!atomic_load(&working)) usleep(1000);
            atomic_fetch_sub(&parked, 1);
        }
    }
    return NULL;
}

static void ring_once(long us) {
    struct itimerval once = {.it_value = {.tv_sec = us / 1000000, .tv_usec = us % 1000000}};
    setitimer(ITIMER_REAL, &once, NULL);
}

static void on_alarm(int sig) {
    (void)sig;
    long begun = microseconds();
    for (volatile int i = 0; i < 20000; i = i + 1) {}
    atomic_fetch_add(&handled, 1);
    long took = microseconds() - begun;
    if (atomic_load(&working)) ring_once(took > 3000 ? took : 3000);
}

NOINLINE static void *busy_block(void) {
    void *p = malloc(128); /* @busy_block */
    KEEP(p);
    return p;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    pthread_t thread;
    for (long kind = 0; kind < KINDS; kind++) pthread_create(&thread, NULL, work, (void *)kind);
    while (atomic_load(&parked) < KINDS) usleep(1000);
    say("ready\n");
    for (;;) {
        const char *word = command();
        int n;
        if (sscanf(word, "alloc %d", &n) == 1) {
            while (n--) blocks[last++ % 4096] = busy_block();
            say("done\n");
        } else if (sscanf(word, "free %d", &n) == 1) {
            while (n--) free(blocks[first++ % 4096]);
            say("done\n");
        } else if (is(word, "go")) {
            atomic_store(&working, 1);
            ring_once(3000);
            while (atomic_load(&parked) > 0) usleep(1000);
            say("done\n");
        } else if (is(word, "park")) {
            atomic_store(&working, 0);
            ring_once(0);
            while (atomic_load(&parked) < KINDS) usleep(1000);
            say("done\n");
        } else if (is(word, "progress")) {
            for (int kind = 0; kind < KINDS; kind++) {
                long before = atomic_load(&rounds[kind]);
                while (atomic_load(&rounds[kind]) < before + 3) usleep(1000);
            }
            say("done\n");
        } else if (is(word, "linked")) {
            say_listed();
        }
    }
}
