/* Keeps many small blocks in a list, and loses one of 50. Threads count meanwhile, to show what a scan takes from them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
    struct node *next;
    long value[9];
};

static struct node *volatile list;
static volatile unsigned long counted;

static __attribute__((noinline)) struct node *make(void) { return malloc(sizeof(struct node)); }

static void *count(void *unused) {
    (void)unused;
    for (unsigned long n = 0;; n++) {
        struct node *p = list;
        for (int i = 0; p && i < 1000; i++) p = p->next;
        counted = n + (p == NULL);
    }
    return NULL;
}

int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 1000000;
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "fill", 4) == 0) {
            struct node *all = NULL;
            for (long i = 0; i < n; i++) {
                struct node *p = make();
                memset(p, 1, sizeof *p);
                p->next = all;
                if (i % 50) all = p;
            }
            list = all;
        } else if (strncmp(line, "count", 5) == 0) {
            pthread_t t;
            pthread_create(&t, NULL, count, NULL);
        } else if (strncmp(line, "quit", 4) == 0) {
            return 0;
        }
        printf("done %lu\n", counted);
    }
    return 0;
}
