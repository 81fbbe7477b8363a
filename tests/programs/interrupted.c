/* AMD64 only. "step N KIB": a thread calls malloc, is interrupted before its Nth instruction there (by single
 * steps), and stays in the handler, in a frame of that many KiB; prints "held ADDRESS". "go": the handler returns,
 * and the call continues; prints "done" if its block is good. */
#include "common.h"
#include <alloca.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <ucontext.h>

static sem_t wanted, held, release, ended;
static volatile int steps, kib, seen;
static volatile uintptr_t entry, at;

NOINLINE static void wait_in_a_large_frame(void) {
    size_t n = (size_t)kib << 10;
    volatile char *frame = alloca(n + 16);
    for (size_t i = 0; i < n; i += 512) frame[i] = (char)i;
    sem_post(&held);
    while (sem_wait(&release) && errno == EINTR) {
    }
    if (n && frame[(n - 1) / 512 * 512] != (char)((n - 1) / 512 * 512)) _exit(7);
}

static void trap(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    ucontext_t *c = context;
    greg_t *regs = c->uc_mcontext.gregs;
    if (!seen && (uintptr_t)regs[REG_RIP] != entry) return;
    if (seen++ < steps) return;
    at = (uintptr_t)regs[REG_RIP];
    regs[REG_EFL] &= ~0x100; /* TF */
    int saved = errno;
    wait_in_a_large_frame();
    errno = saved;
}

static void *work(void *unused) {
    (void)unused;
    for (;;) {
        while (sem_wait(&wanted) && errno == EINTR) {
        }
        seen = 0;
        /* Allocate once before the step, so that the allocator's own initialisation is not stepped through. */
        free(malloc(3000));
        void *(*volatile call)(size_t) = malloc;
        __asm__ volatile("sub $128, %%rsp\n\tpushf\n\torl $0x100, (%%rsp)\n\tpopf\n\tadd $128, %%rsp" ::: "memory", "cc");
        char *p = call(3000);
        __asm__ volatile("sub $128, %%rsp\n\tpushf\n\tandl $~0x100, (%%rsp)\n\tpopf\n\tadd $128, %%rsp" ::: "memory", "cc");
        for (int i = 0; i < 3000; i++) p[i] = (char)i;
        free(p);
        sem_post(&ended);
    }
    return NULL;
}

int main(void) {
    struct sigaction a = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO};
    pthread_t thread;
    void *(*volatile call)(size_t) = malloc;
    entry = (uintptr_t)call;
    sigaction(SIGTRAP, &a, NULL);
    sem_init(&wanted, 0, 0), sem_init(&held, 0, 0), sem_init(&release, 0, 0), sem_init(&ended, 0, 0);
    pthread_create(&thread, NULL, work, NULL);
    say("ready\n");
    for (;;) {
        const char *c = command();
        int n, size;
        if (sscanf(c, "step %d %d", &n, &size) == 2) {
            steps = n, kib = size;
            sem_post(&wanted);
            while (sem_wait(&held)) {
            }
            say("held %lx\n", (unsigned long)at);
        } else if (is(c, "go")) {
            sem_post(&release);
            while (sem_wait(&ended)) {
            }
            say("done\n");
        }
    }
}
