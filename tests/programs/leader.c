/* The second thread reads the commands. "leave": the first one ends alone. "alloc N": N blocks of 96 bytes; "free":
 * frees all of them. "again": the second thread runs the program anew. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>

static sem_t leave;
static void *blocks[4096];
static int count;

NOINLINE static void *left_block(void) {
    void *p = malloc(96); /* @left_block */
    KEEP(p);
    return p;
}

/* Returns whether the process's first thread is a zombie. */
static int first_has_ended(void) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)getpid());
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *end = strrchr(text, ')');
    return end && end[2] == 'Z';
}

static void *serve(void *arg) {
    say("ready\n");
    for (;;) {
        const char *word = command();
        int n;
        if (is(word, "leave")) {
            sem_post(&leave);
            while (!first_has_ended()) usleep(100);
            say("done left\n");
        } else if (sscanf(word, "alloc %d", &n) == 1) {
            while (n--) {
                blocks[count] = left_block();
                fill(blocks[count], 96, (uint32_t)count);
                count++;
            }
            say("done\n");
        } else if (is(word, "again")) {
            execl("/proc/thread-self/exe", "again", (char *)NULL);
            fail("execl");
        } else if (is(word, "free")) {
            for (; count; count--) {
                check(blocks[count - 1], 96, (uint32_t)(count - 1));
                free(blocks[count - 1]);
            }
            say("done\n");
        }
    }
    return arg;
}

int main(void) {
    pthread_t server;
    sem_init(&leave, 0, 0);
    pthread_create(&server, NULL, serve, NULL);
    sem_wait(&leave);
    pthread_exit(NULL);
}
