/* Counts the instructions of a pair of malloc and free, in a child, by single steps. For each line on standard input it
 * prints the median of some pairs. The first line that it prints is the child's process id. */
#include "../programs/common.h"
#include <elf.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { PAIRS = 41, DEPTH = 10, MOST = 10 * 1000 * 1000 };

NOINLINE static void begins(void) { __asm__ volatile("" ::: "memory"); }
NOINLINE static void ends(void) { __asm__ volatile("" ::: "memory"); }

NOINLINE static void pairs(int depth) {
    if (depth > 1) {
        pairs(depth - 1);
        __asm__ volatile("" ::: "memory");
    }
    while (depth == 1) {
        begins();
        void *p = malloc(64);
        KEEP(p);
        free(p);
        ends();
    }
}

/* Returns the address of the next instruction. */
static uintptr_t at(pid_t pid) {
    struct user_regs_struct regs;
    struct iovec all = {&regs, sizeof regs};
    if (ptrace(PTRACE_GETREGSET, pid, (void *)NT_PRSTATUS, &all)) fail("regs: %s", strerror(errno));
#if defined(__x86_64__)
    return regs.rip;
#elif defined(__aarch64__)
    return regs.pc;
#else
#error "it does not know the registers of this processor"
#endif
}

static void stopped(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) fail("the child has ended");
}

/* Makes steps until the next instruction is the one at an address. Returns their number. */
static long until(pid_t pid, void (*function)(void)) {
    for (long n = 0; n < MOST; n++) {
        if (n > 0 && at(pid) == (uintptr_t)function) return n;
        if (ptrace(PTRACE_SINGLESTEP, pid, 0, 0)) fail("step: %s", strerror(errno));
        stopped(pid);
    }
    fail("no end after %d steps", MOST);
}

static int ascending(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

int main(void) {
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pairs(DEPTH);
        _exit(1);
    }
    say("%d\n", (int)pid);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long counts[PAIRS];
        if (ptrace(PTRACE_SEIZE, pid, 0, 0)) fail("seize: %s", strerror(errno));
        ptrace(PTRACE_INTERRUPT, pid, 0, 0);
        stopped(pid);
        until(pid, begins);
        for (int i = 0; i < PAIRS; i++) {
            counts[i] = until(pid, ends);
            until(pid, begins);
        }
        ptrace(PTRACE_DETACH, pid, 0, 0);
        qsort(counts, PAIRS, sizeof *counts, ascending);
        say("%ld\n", counts[PAIRS / 2]);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
