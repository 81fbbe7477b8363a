/* "fork": makes a child that allocates a little and then waits; prints "done PID". The child ends with its parent,
 * with "stay" after a minute. At SIGUSR2 it allocates some more and then renames itself to "works".
 * "fork ADDRESS": the same without libc's fork; the child also maps memory of its own there, which it checks at SIGUSR2. */
#include "common.h"
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static volatile sig_atomic_t asked;

static void ask(int signal) {
    (void)signal;
    asked = 1;
}

#define OWN (256 << 10)

static volatile char *map_own(unsigned long address) {
    char *own = mmap((void *)address, OWN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own != (char *)address) _exit(3);
    memset(own, 7, OWN);
    return own;
}

static void check_own(volatile char *own) {
    for (int i = 0; own && i < OWN; i++)
        if (own[i] != 7) _exit(4);
}

static int stays;
static unsigned long address;

__attribute__((noreturn)) static int child(void *unused) {
    (void)unused;
    if (stays) alarm(60);
    else prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 1; i < 100; i++) free(malloc((size_t)i * 50));
    volatile char *own = address ? map_own(address) : NULL;
    for (;;) {
        pause();
        if (!asked) continue;
        for (int i = 1; i < 10000; i++) free(malloc((size_t)(i % 300) * 50));
        check_own(own);
        prctl(PR_SET_NAME, "works");
    }
}

/* A child on a stack of its own, which a fork by libc is not. */
static pid_t make_apart(void) {
    static _Alignas(16) char stack[256 << 10];
    return clone(child, stack + sizeof stack, SIGCHLD, NULL);
}

int main(int argc, char **argv) {
    (void)argv;
    stays = argc > 1;
    signal(SIGUSR2, ask);
    say("ready\n");
    for (;;) {
        const char *asked_for = command();
        if (strncmp(asked_for, "fork", 4) != 0) continue;
        address = strtoul(asked_for + 4, NULL, 16);
        pid_t pid = address ? make_apart() : fork();
        if (pid == 0) child(NULL);
        say("done %d\n", (int)pid);
    }
}
