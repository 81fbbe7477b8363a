/* Programs that use their descriptors while prof comes and goes: one closes every number in a loop and opens a file
 * of its own, in a thread or in a process that shares them, one relies on the lowest free number, one forks, one has
 * none left. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LAST 24
static const char *path;
static volatile int ending, wrong;
static volatile unsigned long rounds;

static void *closes(void *nothing) {
    while (!ending) {
        for (int n = 3; n <= LAST; n++) close(n);
        rounds++;
    }
    return nothing;
}
static void *opens(void *nothing) {
    while (!ending) {
        int fd = open(path, O_RDWR);
        struct stat now;
        if (stat(path, &now) || now.st_size != 6) wrong++;
        if (fd < 0 || fd > LAST) {
            close(fd);
            sched_yield();
        }
    }
    return nothing;
}

static void *counts(void *nothing) {
    int fd;
    do {
        fd = open("/dev/null", O_RDONLY);
        if (fd < 0) fail("open: %d", errno);
    } while (fd < 8);
    while (!ending) {
        if (close(5)) fail("close: %d", errno);
        fd = open("/dev/null", O_RDONLY);
        if (fd != 5) {
            wrong++;
            close(fd);
            while ((fd = open("/dev/null", O_RDONLY)) != 5) close(fd);
        }
        rounds++;
    }
    return nothing;
}

/* Returns whether a file about the child's own process names the ring, without allocating. */
static int names_ring(int fd) {
    static char text[4096 + 16];
    size_t kept = 0;
    ssize_t n;
    int found = 0;
    while ((n = read(fd, text + kept, 4096)) > 0) {
        size_t len = kept + (size_t)n;
        found |= memmem(text, len, "prof-ring", 9) != NULL;
        kept = len < 16 ? len : 16;
        memmove(text, text + len - kept, kept);
    }
    return found;
}
static int has_ring(void) {
    int found = 0;
    for (int n = 3; n < 64; n++) {
        char link[64], to[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", n);
        ssize_t len = readlink(link, to, sizeof to);
        if (len > 0 && memmem(to, (size_t)len, "prof-ring", 9)) found = 1;
    }
    int fd = open("/proc/self/maps", O_RDONLY);
    if (fd >= 0 && names_ring(fd)) found |= 2;
    return found;
}
static void *forks(void *nothing) {
    while (!ending) {
        pid_t pid = fork();
        if (pid == 0) _exit(has_ring());
        int status = 0;
        if (pid < 0 || waitpid(pid, &status, 0) != pid) fail("fork: %d", errno);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) wrong++;
        rounds++;
    }
    return nothing;
}

/* Makes a process with the same descriptors and a memory of its own, which closes them and opens the file. */
static void shares(void) {
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid < 0) fail("clone: %d", errno);
    if (pid) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        for (int n = 3; n <= 12; n++) close(n);
        for (int n = 3; n <= 12; n++) open(path, O_RDWR);
    }
}

static void begin(void *(*work)(void *), int threads) {
    pthread_t thread;
    while (threads-- > 0)
        if (pthread_create(&thread, NULL, work, NULL)) fail("thread");
}

/* Opens as many descriptors as are allowed. */
static void fill_up(void) {
    struct rlimit few = {32, 32};
    if (setrlimit(RLIMIT_NOFILE, &few)) fail("limit");
    while (open("/dev/null", O_RDONLY) >= 0) {}
    if (errno != EMFILE) fail("open: %d", errno);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    path = argc > 2 ? argv[2] : "";
    if (is(mode, "closes")) {
        begin(closes, 1);
        begin(opens, 2);
    }
    if (is(mode, "counts")) begin(counts, 1);
    if (is(mode, "forks")) begin(forks, 1);
    if (is(mode, "full")) fill_up();
    if (is(mode, "shares")) shares();
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (is(word, "room")) {
            struct rlimit more = {32, 32};
            if (close(9) || setrlimit(RLIMIT_NOFILE, &more)) fail("room");
            say("done\n");
        }
        if (is(word, "count")) say("done %d wrong of %lu\n", wrong, rounds);
    }
}
