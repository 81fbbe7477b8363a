/* A thread in an uninterruptible wait, which no tracer can stop: in vfork, until the child ends. "alone": the only
 * thread; "beside": a thread other than the one that reads commands. "go MS" waits for that long; "done" is printed
 * at its end. */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

static void *wait_for_child(void *argument) {
    struct timespec t = {(long)(intptr_t)argument / 1000, (long)(intptr_t)argument % 1000 * 1000000};
    int status;
    pid_t pid = vfork();
    if (pid == 0) {
        /* Use system calls only, as the memory is the parent's. */
        nanosleep(&t, NULL);
        _exit(6);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 6 << 8) fail("vfork");
    say("done\n");
    return NULL;
}

int main(int argc, char **argv) {
    int ms;
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "alloc")) {
            void *p = malloc(77); /* @stuck_block */
            KEEP(p);
            say("done\n");
        }
        if (sscanf(line, "go %d", &ms) != 1) continue;
        pthread_t id;
        if (argc > 1 && strcmp(argv[1], "alone") == 0) {
            say("going\n");
            wait_for_child((void *)(intptr_t)ms);
        } else {
            if (pthread_create(&id, NULL, wait_for_child, (void *)(intptr_t)ms)) fail("pthread_create");
            pthread_detach(id);
            /* Only now: pthread_create blocks all signals while it works, and a test that looks then would see
             * another mask than later. */
            say("going\n");
        }
    }
}
