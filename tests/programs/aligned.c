/* A thread that makes the processor check alignment (EFLAGS.AC), and allocates nothing meanwhile. Commands: "spin",
 * which begins that, and "stop". */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

static atomic_int spinning, stop;

static void *work(void *unused) {
    __asm__ volatile("pushf; orl $0x40000, (%%rsp); popf" : : : "cc", "memory");
    atomic_store(&spinning, 1);
    while (!atomic_load(&stop)) {}
    __asm__ volatile("pushf; andl $~0x40000, (%%rsp); popf" : : : "cc", "memory");
    return unused;
}

int main(void) {
    pthread_t id;
    say("ready\n");
    for (;;) {
        if (is(command(), "spin")) {
            atomic_store(&stop, 0);
            atomic_store(&spinning, 0);
            if (pthread_create(&id, NULL, work, NULL)) fail("pthread_create");
            while (!atomic_load(&spinning)) {}
        } else {
            atomic_store(&stop, 1);
            pthread_join(id, NULL);
        }
        say("done\n");
    }
}
