/* Lets its system calls be dispatched to a handler of its own, as Wine does: SIGUSR2 makes it begin to compute with
 * system calls caught, and end that again. Any call that is not its own raises SIGSYS, which kills it where all
 * signals are blocked. */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif
enum { ALLOW = 0, BLOCK = 1 };

static volatile char selector = ALLOW;
static volatile sig_atomic_t caught, end;

static void on_sigsys(int signal) {
    (void)signal;
    selector = ALLOW; /* or the return from here would be caught as well */
    caught++;
}

static void on_usr2(int signal) {
    (void)signal;
    selector = ALLOW;
    end = 1;
}

int main(void) {
    struct sigaction sys = {.sa_handler = on_sigsys}, usr2 = {.sa_handler = on_usr2};
    if (sigaction(SIGSYS, &sys, NULL) || sigaction(SIGUSR2, &usr2, NULL)) fail("sigaction");
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0L, 0L, &selector)) {
        say("unsupported\n");
        return 0;
    }
    say("ready\n");
    for (;;) {
        const char *c = command();
        if (strcmp(c, "compute") == 0) {
            end = 0;
            say("computing\n");
            selector = BLOCK;
            while (!end) continue;
        } else if (strcmp(c, "blink") == 0) {
            end = 0;
            say("blinking\n");
            while (!end) { /* calls are caught most of the time */
                selector = BLOCK;
                for (volatile int i = 0; i < 6000000 && !end; i++) continue;
                selector = ALLOW;
                for (volatile int i = 0; i < 3000000 && !end; i++) continue;
            }
            selector = ALLOW;
        } else if (strcmp(c, "go") == 0) {
            for (int i = 0; i < 50; i++) {
                void *p = malloc(32); /* @dispatched_block */
                KEEP(p);
            }
        }
        say("done caught=%d\n", (int)caught);
    }
}
