/* Adopts orphans, as a container's first process does, and reaps all children in its handler of SIGCHLD. Commands:
 * "run COMMAND" runs it by a shell, and prints its exit code; "children" prints how many strangers it has reaped,
 * how many signals were those of strangers, and whether there are more children; "storm", until the next command:
 * makes children that end at once, and waits for the signal of each. */
#include "common.h"
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static volatile sig_atomic_t own, last, status, strangers, strange_signals;

static void reap(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    int before = errno, r, how;
    if (info->si_code > 0 && info->si_pid != own && info->si_pid != last) strange_signals++;
    while ((r = waitpid(-1, &how, WNOHANG)) > 0) {
        if (r == own) last = r, own = 0, status = how;
        else strangers++;
    }
    errno = before;
}

/* Makes a child and waits until the handler has reaped it. */
static void run(const char *line) {
    sigset_t chld, old;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, &old);
    int pid = fork();
    if (pid == 0) {
        sigprocmask(SIG_SETMASK, &old, NULL);
        if (line) execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(line ? 127 : 0);
    }
    if (pid < 0) fail("fork");
    own = pid;
    alarm(line ? 0 : 60);
    while (own == pid) sigsuspend(&old);
    alarm(0);
    sigprocmask(SIG_SETMASK, &old, NULL);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = reap, .sa_flags = SA_SIGINFO | SA_RESTART};
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) || sigaction(SIGCHLD, &action, NULL)) fail("prctl");
    say("ready\n");
    for (;;) {
        const char *c = command();
        if (strncmp(c, "run ", 4) == 0) {
            run(c + 4);
            say("done %d\n", WEXITSTATUS(status));
        } else if (strcmp(c, "storm") == 0) {
            struct pollfd in = {.fd = 0, .events = POLLIN};
            long n = 0;
            say("done storm\n");
            do run(NULL), n++;
            while (poll(&in, 1, 0) == 0);
            say("stormed %ld\n", n);
        } else {
            int r = waitpid(-1, NULL, WNOHANG);
            say("done %d strangers, %d signals, %s\n", (int)strangers, (int)strange_signals,
                r < 0 ? "no more" : "more");
        }
    }
}
