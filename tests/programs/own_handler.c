/* Sets a handler of its own for SIGUSR1 as soon as the default is in force again after another handler. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

static atomic_int seen_other, has_own;

static void own(int signal) { (void)signal; }

static void *watch(void *arg) {
    for (;;) {
        struct sigaction now;
        sigaction(SIGUSR1, NULL, &now);
        if (now.sa_handler == own) {
            atomic_store(&has_own, 1);
            return arg;
        }
        if (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN) atomic_store(&seen_other, 1);
        if (now.sa_handler == SIG_DFL && atomic_load(&seen_other)) {
            struct sigaction mine = {.sa_handler = own};
            sigaction(SIGUSR1, &mine, NULL);
        }
    }
}

int main(void) {
    pthread_t watcher;
    pthread_create(&watcher, NULL, watch, NULL);
    say("ready\n");
    for (;;) {
        if (is(command(), "seen")) {
            while (!atomic_load(&seen_other)) usleep(100);
            say("done\n");
        }
    }
}
