/* Known numbers of blocks of known sizes, each kind from its own line, whose figures a sample estimates. Commands
 * are a word and the number of blocks. */
#include "common.h"
#include <pthread.h>

#define MOST 600000
static void *kept[MOST], *old[20000];
static int nkept;

static void keep(void *p) {
    if (!p) fail("out of memory");
    kept[__atomic_fetch_add(&nkept, 1, __ATOMIC_RELAXED)] = p;
}
NOINLINE static void plain(int n) { /* half of them freed at once */
    for (int i = 0; i < n; i++) {
        void *p = malloc(64); /* @plain */
        KEEP(p);
        if (i % 2 == 0) {
            free(p);
        } else {
            keep(p);
        }
    }
}
NOINLINE static void zeroed(int n) {
    for (int i = 0; i < n; i++) {
        void *p = calloc(8, 40); /* @zeroed */
        keep(p);
    }
}
NOINLINE static void grown(int n) {
    for (int i = 0; i < n; i++) {
        void *p = malloc(40); /* @grown_first */
        KEEP(p);
        p = realloc(p, 400); /* @grown */
        keep(p);
    }
}
NOINLINE static void shrunk(int n) {
    for (int i = 0; i < n; i++) {
        void *p = malloc(900); /* @shrunk_first */
        KEEP(p);
        p = realloc(p, 100); /* @shrunk */
        keep(p);
    }
}
NOINLINE static void aligned(int n) {
    for (int i = 0; i < n; i++) {
        void *p = NULL;
        if (posix_memalign(&p, 64, 192)) fail("posix_memalign"); /* @aligned */
        keep(p);
    }
}
/* Two sizes by turns: picking every Nth block would see only one of them. */
NOINLINE static void by_turns(int n) {
    for (int i = 0; i < n; i++) {
        void *p = malloc(48); /* @turn_a */
        keep(p);
        p = malloc(80); /* @turn_b */
        keep(p);
    }
}
NOINLINE static void *frees(void *arg) { /* half of them by realloc to 0 bytes or elsewhere */
    int from = (int)(intptr_t)arg;
    for (int i = from; i < nkept; i++) {
        if (i % 2) {
            void *p = realloc(kept[i], 3000); /* @moved */
            KEEP(p);
            kept[i] = p;
        }
        free(kept[i]);
    }
    nkept = from;
    return NULL;
}
static void in_thread(void *(*f)(void *), void *arg) {
    pthread_t t;
    if (pthread_create(&t, NULL, f, arg)) fail("pthread_create");
    if (pthread_join(t, NULL)) fail("pthread_join");
}
NOINLINE static void handed(int n) { /* allocated here, freed by another thread */
    int first = nkept;
    for (int i = 0; i < n; i++) {
        void *p = malloc(128); /* @handed */
        keep(p);
    }
    in_thread(frees, (void *)(intptr_t)first);
}
NOINLINE static void *allocates(void *arg) {
    int n = (int)(intptr_t)arg;
    for (int i = 0; i < n; i++) {
        void *p = malloc(96); /* @threaded */
        keep(p);
    }
    return NULL;
}
NOINLINE static void threaded(int n) { /* four threads */
    pthread_t t[4];
    for (int i = 0; i < 4; i++) {
        if (pthread_create(&t[i], NULL, allocates, (void *)(intptr_t)(n / 4))) fail("pthread");
    }
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}
NOINLINE static void sizes(int n) { /* n of each size from 1 to 64 */
    for (int i = 0; i < n; i++) {
        for (size_t s = 1; s <= 64; s++) {
            void *p = malloc(s); /* @sizes */
            keep(p);
        }
    }
}
NOINLINE static void across(int n) { /* over the limits of 100 to 1000, and back */
    for (int i = 0; i < n; i++) {
        void *p = malloc(50); /* @across_small */
        KEEP(p);
        p = realloc(p, 500); /* @across_in */
        KEEP(p);
        p = realloc(p, 5000); /* @across_out */
        KEEP(p);
        p = realloc(p, 600); /* @across_back */
        keep(p);
    }
}

int main(void) {
    for (int i = 0; i < 20000; i++) {
        old[i] = malloc(200);
        KEEP(old[i]);
    }
    /* libc's own blocks for threads are allocated before anything is counted. */
    in_thread(allocates, NULL);
    static const struct {
        const char *word;
        void (*run)(int);
    } commands[] = {{"plain", plain},     {"zeroed", zeroed},     {"grown", grown},
                    {"shrunk", shrunk},   {"aligned", aligned},   {"by_turns", by_turns},
                    {"handed", handed},   {"threaded", threaded}, {"sizes", sizes},
                    {"across", across}};
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "free")) {
            for (int i = 0; i < nkept; i++) free(kept[i]);
            nkept = 0;
        } else if (is(line, "old")) {
            for (int i = 0; i < 20000; i++) {
                if (i % 4 == 0) {
                    old[i] = realloc(old[i], 300); /* @old */
                    KEEP(old[i]);
                }
                free(old[i]);
                old[i] = NULL;
            }
        } else {
            for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
                size_t n = strlen(commands[i].word);
                if (!strncmp(line, commands[i].word, n) && line[n] == ' ') {
                    commands[i].run(atoi(line + n));
                }
            }
        }
        say("done\n");
    }
}
