/* Memory that libc's allocator does not provide. "map N": N MiB that the program maps itself, and touches; "malloc
 * N": N MiB by malloc, in blocks of 64 KiB; "churn N": that much by malloc, freed at once; "rise": a thread maps 1
 * MiB each 20 ms from now on. "fork": makes a worker; prints "done PID". "grow PID": the worker allocates 8 MiB by
 * malloc and touches them. "brief": a child that ends at once. With ZEND defined it has a function by which PHP is
 * recognised. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define MIB (1u << 20)

#ifdef ZEND
__attribute__((visibility("default"), noinline)) void *_emalloc(size_t size) {
    (void)size;
    return NULL;
}
#endif

static void map(size_t n) {
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    memset(p, 1, n);
}

static void *rise(void *unused) {
    for (int i = 0; i < 1000; i++) {
        map(MIB);
        usleep(20000);
    }
    return unused;
}

static void worker(int answers) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    for (int got;;) {
        if (sigwait(&set, &got) != 0) continue;
        char *p = malloc(8 * MIB);
        memset(p, 1, 8 * MIB);
        KEEP(p);
        if (write(answers, "!", 1) != 1) _exit(1);
    }
}

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int answers[2];
    if (pipe(answers) != 0) fail("pipe");
    say("ready\n");
    for (;;) {
        const char *line = command();
        int n = 0;
        pid_t pid = 0;
        if (sscanf(line, "map %d", &n) == 1) {
            map((size_t)n * MIB);
        } else if (sscanf(line, "malloc %d", &n) == 1 || sscanf(line, "churn %d", &n) == 1) {
            for (int i = 0; i < n * 16; i++) {
                char *p = malloc(64 << 10);
                memset(p, 1, 64 << 10);
                KEEP(p);
                if (line[0] == 'c') free(p);
            }
        } else if (is(line, "rise")) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, rise, NULL) != 0) fail("thread");
        } else if (is(line, "fork")) {
            pid = fork();
            if (pid == 0) worker(answers[1]);
        } else if (sscanf(line, "grow %d", &pid) == 1) {
            char c;
            kill(pid, SIGUSR2);
            if (read(answers[0], &c, 1) != 1) fail("answer");
        } else if (is(line, "brief")) {
            pid = fork();
            if (pid == 0) _exit(0);
            waitpid(pid, NULL, 0);
        }
        say("done %d\n", (int)pid);
    }
}
