/* Learns which pages of its heap are written to: they are read-only until a handler of SIGSEGV opens them. "protect" makes
 * all read-only. "alloc N": N blocks of 128 bytes, kept. "opened" prints how many pages were opened. */
#include "common.h"
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static void *blocks[65536];
static int last;
static char *begin;
static volatile sig_atomic_t opened;

NOINLINE static void *guarded_block(void) {
    void *p = malloc(128); /* @guarded_block */
    KEEP(p);
    return p;
}

static void on_segv(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    uintptr_t page = (uintptr_t)info->si_addr & ~(uintptr_t)(getpagesize() - 1);
    if ((char *)page < begin || (char *)page >= (char *)sbrk(0)) _exit(3);
    mprotect((void *)page, getpagesize(), PROT_READ | PROT_WRITE);
    opened = opened + 1;
}

int main(void) {
    begin = (char *)(((uintptr_t)sbrk(0) + getpagesize() - 1) & ~(uintptr_t)(getpagesize() - 1));
    for (int i = 0; i < 100; i++) blocks[last++] = guarded_block();
    struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGSEGV, &action, NULL);
    say("ready\n");
    for (;;) {
        const char *word = command();
        int n;
        if (is(word, "protect")) {
            if (mprotect(begin, (char *)sbrk(0) - begin, PROT_READ)) return 4;
            say("done\n");
        } else if (sscanf(word, "alloc %d", &n) == 1) {
            while (n--) blocks[last++] = guarded_block();
            say("done\n");
        } else if (is(word, "opened")) {
            say("done %d\n", (int)opened);
        }
    }
}
