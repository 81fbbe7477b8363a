/* "fork": makes a child that counts its allocations as its parent does; prints "done PID". "batch": this process and all
 * children that live make and free blocks; prints for each that has: "of PID ALLOCATIONS FREES", and then "done". "end
 * PID": ends a child, as the end of this process ends all. The counts are of blocks since the begin of the process, a
 * child's since its fork. */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { MOST = 16, EACH = 2000 };
static struct {
    pid_t pid;
    int to, from;
} children[MOST];
static int nchildren;
static size_t allocations, frees;
static void *kept[1 << 12];

NOINLINE static void *family_block(void) {
    void *p = malloc(96); /* @family */
    KEEP(p);
    allocations++;
    return p;
}

static void batch(void) {
    for (int i = 0; i < EACH; i++) {
        void *p = family_block();
        size_t at = allocations % (sizeof kept / sizeof *kept);
        if (i % 10) {
            free(p);
            frees++;
        } else {
            if (kept[at]) free(kept[at]), frees++;
            kept[at] = p;
        }
    }
}

/* A child takes a byte for each batch, and answers with its counts. */
static void child(int from, int to) {
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    allocations = frees = 0;
    /* What the parent has is its own. */
    memset(kept, 0, sizeof kept);
    while (read(from, &byte, 1) == 1) {
        batch();
        size_t counts[2] = {allocations, frees};
        if (write(to, counts, sizeof counts) != sizeof counts) break;
    }
    _exit(0);
}

static void make(void) {
    int to[2], from[2];
    if (nchildren == MOST || pipe(to) || pipe(from)) fail("pipe");
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        child(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    children[nchildren].pid = pid;
    children[nchildren].to = to[1];
    children[nchildren++].from = from[0];
    say("done %d\n", (int)pid);
}

static void all(void) {
    for (int i = 0; i < nchildren; i++) {
        size_t counts[2];
        if (!children[i].pid) continue;
        if (write(children[i].to, "b", 1) != 1) fail("write");
        if (read(children[i].from, counts, sizeof counts) != sizeof counts) fail("read");
        say("of %d %zu %zu\n", (int)children[i].pid, counts[0], counts[1]);
    }
    batch();
    say("of %d %zu %zu\ndone\n", (int)getpid(), allocations, frees);
}

int main(void) {
    say("ready\n");
    for (;;) {
        const char *word = command();
        int pid;
        if (is(word, "fork")) make();
        if (is(word, "batch")) all();
        if (sscanf(word, "end %d", &pid) == 1) {
            for (int i = 0; i < nchildren; i++) {
                if (children[i].pid != pid) continue;
                kill(pid, SIGKILL);
                waitpid(pid, NULL, 0);
                children[i].pid = 0;
            }
            say("done\n");
        }
    }
}
