/* Processes that allocate as soon as they are forked. Each makes COUNT blocks, of which it keeps KEPT, and then waits for the end
 * of its parent. "fork COUNT KEPT": a child; prints "done PID". "grand COUNT KEPT": a child and a child of that; prints "done PID
 * PID". "threads N COUNT KEPT": N threads fork at the same time; prints "done" and the children. "daemon COUNT KEPT": a child of a
 * child that ends at once; prints "done PID". "limit MS": a child that limits its address space to 300 MiB after this time, and then
 * gets 64 MiB; prints "done PID 1" if it does. "brief N COUNT KEPT": N children that live for some 4 ms and end with the exit code
 * 3, one after the other; prints "done" and the children. "execs N": the same of
 * children that run another program then, which ends at once with the exit code 0. "many": forks children with 100 blocks, of which they keep 10, until there is
 * another command; prints "done" and the children.
 *
 * "hold N": this process gets N blocks that it keeps; prints "done". "drop N": a child that frees N of the blocks that it has from
 * this process, and has another that frees as many, while this process gets 20 more; prints "done PID PID". "check": prints "done"
 * if memory that all share has kept its content. */
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MOST = 16, PAGES = 1 << 20, SIZE = 200 };
static void *kept[1 << 16];
static unsigned char *shared;

NOINLINE static void *heir_block(void) {
    void *p = malloc(SIZE); /* @heir */
    KEEP(p);
    return p;
}

static void *held[1 << 12];
static int nheld;

NOINLINE static void *held_block(void) {
    void *p = malloc(SIZE / 2); /* @held */
    KEEP(p);
    return p;
}

static void drop(int count) {
    while (count-- > 0 && nheld > 0) free(held[--nheld]);
}

static void work(int count, int keep) {
    for (int i = 0; i < count; i++) {
        void *p = heir_block();
        if (i < keep) kept[i] = p;
        else free(p);
    }
}

static pid_t forked(int count, int keep) {
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) fail("fork");
    if (pid > 0) return pid;
    work(count, keep);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    for (;;) pause();
}

static void grand(int count, int keep) {
    int ends[2];
    pid_t pids[2];
    if (pipe(ends)) fail("pipe");
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(count, keep);
        pid_t both[2] = {getpid(), forked(count, keep)};
        if (write(ends[1], both, sizeof both) != sizeof both) _exit(1);
        for (;;) pause();
    }
    if (read(ends[0], pids, sizeof pids) != sizeof pids) fail("read");
    close(ends[0]);
    close(ends[1]);
    say("done %d %d\n", (int)pids[0], (int)pids[1]);
}

/* Ends with the first process, whose end of the pipe is closed then. */
static int life[2];

static void daemonized(int count, int keep) {
    int ends[2];
    pid_t pid;
    if (pipe(ends)) fail("pipe");
    pid_t middle = fork();
    if (middle < 0) fail("fork");
    if (middle == 0) {
        if ((pid = fork()) != 0) _exit(0);
        setsid();
        work(count, keep);
        pid = getpid();
        close(life[1]);
        char byte;
        if (write(ends[1], &pid, sizeof pid) != sizeof pid) _exit(1);
        _exit(read(life[0], &byte, 1) != 0);
    }
    waitpid(middle, NULL, 0);
    if (read(ends[0], &pid, sizeof pid) != sizeof pid) fail("read");
    close(ends[0]);
    close(ends[1]);
    say("done %d\n", (int)pid);
}

/* A child that limits its address space, at once or when it has done its work for a while, and then gets memory. */
static void limited(int after) {
    int ends[2];
    pid_t answer[2];
    if (pipe(ends)) fail("pipe");
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        struct rlimit most = {300 << 20, 300 << 20};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(1000, 10);
        usleep((unsigned)after * 1000);
        if (setrlimit(RLIMIT_AS, &most)) _exit(1);
        void *large = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        answer[0] = getpid();
        answer[1] = large != MAP_FAILED;
        for (int i = 10; i < 1000; i++) free(heir_block());
        if (write(ends[1], answer, sizeof answer) != sizeof answer) _exit(1);
        for (;;) pause();
    }
    if (read(ends[0], answer, sizeof answer) != sizeof answer) fail("read");
    close(ends[0]);
    close(ends[1]);
    say("done %d %d\n", (int)answer[0], (int)answer[1]);
}

static void brief(int n, int count, int keep, const char *program) {
    char line[1000];
    int at = 0, status;
    while (n-- > 0 && at < 900) {
        pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            work(count, keep);
            usleep(program ? 20000 : 3000);
            if (program) execl(program, program, (char *)NULL);
            _exit(3);
        }
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != (program ? 0 : 3)) {
            fail("waitpid");
        }
        at += snprintf(line + at, sizeof line - (size_t)at, " %d", (int)pid);
    }
    say("done%s\n", line);
}

static void dropped(int count) {
    int ends[2];
    pid_t pids[2];
    if (pipe(ends)) fail("pipe");
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        drop(count);
        pids[0] = getpid();
        pids[1] = fork();
        if (pids[1] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            drop(count);
            for (;;) pause();
        }
        if (write(ends[1], pids, sizeof pids) != sizeof pids) _exit(1);
        for (;;) pause();
    }
    /* The child has none of these. */
    for (int i = 0; i < 20; i++) held[nheld++] = held_block();
    if (read(ends[0], pids, sizeof pids) != sizeof pids) fail("read");
    close(ends[0]);
    close(ends[1]);
    say("done %d %d\n", (int)pids[0], (int)pids[1]);
}

/* Forks every 5 ms until there is a command, and prints "done" and the children. */
static void many(void) {
    char line[1000];
    int at = 0;
    struct pollfd in = {.fd = 0, .events = POLLIN};
    while (poll(&in, 1, 5) == 0) {
        if (at > 900) continue;
        at += snprintf(line + at, sizeof line - (size_t)at, " %d", (int)forked(100, 10));
    }
    command();
    say("done%s\n", line);
}

static pthread_barrier_t all_are_there, all_have_forked;
static pid_t of_thread[MOST];
static int counts[2];

static void *thread(void *arg) {
    pthread_barrier_wait(&all_are_there);
    of_thread[(uintptr_t)arg] = forked(counts[0], counts[1]);
    pthread_barrier_wait(&all_have_forked);
    for (;;) pause();
    return NULL;
}

static void threads(int n) {
    char line[256];
    int at = 0;
    if (n > MOST) fail("too many");
    pthread_barrier_init(&all_are_there, NULL, (unsigned)n);
    pthread_barrier_init(&all_have_forked, NULL, (unsigned)n + 1);
    for (uintptr_t i = 0; i < (uintptr_t)n; i++) {
        pthread_t t;
        if (pthread_create(&t, NULL, thread, (void *)i)) fail("pthread_create");
    }
    pthread_barrier_wait(&all_have_forked);
    for (int i = 0; i < n; i++) {
        at += snprintf(line + at, sizeof line - (size_t)at, " %d", (int)of_thread[i]);
    }
    say("done%s\n", line);
}

int main(void) {
    int a, b, n;
    if (pipe(life)) fail("pipe");
    shared = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("mmap");
    munmap(shared, PAGES / 2);
    shared += PAGES / 2;
    memset(shared, 0x5a, PAGES / 2);
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (sscanf(word, "fork %d %d", &a, &b) == 2) say("done %d\n", (int)forked(a, b));
        if (sscanf(word, "grand %d %d", &a, &b) == 2) grand(a, b);
        if (sscanf(word, "threads %d %d %d", &n, counts, counts + 1) == 3) threads(n);
        if (sscanf(word, "hold %d", &a) == 1) {
            while (a-- > 0 && nheld < 1 << 12) held[nheld++] = held_block();
            say("done\n");
        }
        if (sscanf(word, "drop %d", &a) == 1) dropped(a);
        if (sscanf(word, "daemon %d %d", &a, &b) == 2) daemonized(a, b);
        if (sscanf(word, "limit %d", &a) == 1) limited(a);
        if (sscanf(word, "brief %d %d %d", &n, &a, &b) == 3) brief(n, a, b, NULL);
        if (sscanf(word, "execs %d", &n) == 1) brief(n, 1000, 10, "/bin/true");
        if (is(word, "many")) many();
        if (is(word, "check")) {
            for (int i = 0; i < PAGES / 2; i++)
                if (shared[i] != 0x5a) fail("shared memory has changed");
            say("done\n");
        }
    }
}
