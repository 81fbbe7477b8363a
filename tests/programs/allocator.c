/* Blocks of known sizes, threads with arenas of their own, and calls that change the allocator's settings. Under jemalloc
 * also its own calls. */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>

enum { BLOCKS = 1000, THREADS = 3 };

static void *keep[16 * BLOCKS];
static size_t kept;

/* Counts what the blocks at a place were asked for, and what can be used of them. */
struct sum {
    size_t asked, usable;
};

static void *noted(void *p, size_t size, struct sum *s) {
    if (!p) fail("malloc");
    KEEP(p);
    s->asked += size;
    s->usable += malloc_usable_size(p);
    return keep[kept++] = p;
}

NOINLINE static void even(struct sum *s) {
    for (int i = 0; i < BLOCKS; i++) noted(malloc(40), 40, s); /* @even */
}

NOINLINE static void odd(struct sum *s) {
    for (int i = 0; i < BLOCKS; i++) noted(malloc(73), 73, s); /* @odd */
}

NOINLINE static void large(struct sum *s) {
    for (int i = 0; i < 10; i++) noted(malloc(1000000), 1000000, s); /* @large */
}

static void blocks(void) {
    struct sum a = {0, 0}, b = {0, 0}, c = {0, 0};
    even(&a);
    odd(&b);
    large(&c);
    say("done even=%zu even_usable=%zu odd=%zu odd_usable=%zu large=%zu large_usable=%zu\n", a.asked,
        a.usable, b.asked, b.usable, c.asked, c.usable);
}

static pthread_barrier_t there, leave;

static void *worker(void *none) {
    void *p = malloc(100000); /* @in_thread */
    KEEP(p);
    pthread_barrier_wait(&there);
    pthread_barrier_wait(&leave);
    free(p);
    return none;
}

static void threads(void) {
    pthread_barrier_init(&there, NULL, THREADS + 1);
    pthread_barrier_init(&leave, NULL, THREADS + 1);
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&t[i], NULL, worker, NULL)) fail("pthread_create");
        pthread_detach(t[i]);
    }
    pthread_barrier_wait(&there);
    say("done\n");
}

static void settings(void) {
    if (mallopt(M_MMAP_THRESHOLD, 512 << 10) != 1) fail("mallopt"); /* @mallopt */
    if (mallopt(M_TRIM_THRESHOLD, 256 << 10) != 1) fail("mallopt");
    malloc_trim(4096);
    FILE *null = fopen("/dev/null", "w");
    if (!null || malloc_info(0, null) != 0) fail("malloc_info"); /* @malloc_info */
    fclose(null);
    say("done\n");
}

/* jemalloc's functions, which are there if its library was loaded first. */
typedef int control(const char *, void *, size_t *, void *, size_t);
typedef int control_by_parts(const size_t *, size_t, void *, size_t *, void *, size_t);
typedef int parts_of(const char *, size_t *, size_t *);

static void controls(void) {
    control *mallctl = (control *)dlsym(RTLD_DEFAULT, "mallctl");
    control_by_parts *by_parts = (control_by_parts *)dlsym(RTLD_DEFAULT, "mallctlbymib");
    parts_of *find = (parts_of *)dlsym(RTLD_DEFAULT, "mallctlnametomib");
    if (!mallctl || !by_parts || !find) fail("dlsym");
    uint64_t epoch = 1, now = 0;
    size_t len = sizeof epoch, narenas = 0;
    ssize_t decay = 1234, old = 0;
    if (mallctl("epoch", &now, &len, &epoch, sizeof epoch)) fail("epoch");
    len = sizeof old;
    if (mallctl("arena.0.dirty_decay_ms", &old, &len, NULL, 0)) fail("a read");
    if (mallctl("arena.0.dirty_decay_ms", NULL, NULL, &decay, sizeof decay)) fail("a write"); /* @mallctl */
    if (mallctl("arena.0.purge", NULL, NULL, NULL, 0)) fail("an order");
    if (mallctl("no.such.name", NULL, NULL, &decay, sizeof decay) == 0) fail("a wrong name");
    size_t parts[3], n = 3;
    if (find("arena.0.muzzy_decay_ms", parts, &n)) fail("mallctlnametomib");
    decay = -1;
    if (by_parts(parts, n, NULL, NULL, &decay, sizeof decay)) fail("mallctlbymib"); /* @by_parts */
    len = sizeof(unsigned);
    if (mallctl("arenas.narenas", &narenas, &len, NULL, 0)) fail("arenas.narenas");
    say("done parts=%zu.%zu.%zu arenas=%zu\n", parts[0], parts[1], parts[2], narenas);
}

int main(void) {
    void *p = malloc(100);
    KEEP(p);
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "blocks")) blocks();
        else if (is(line, "threads")) threads();
        else if (is(line, "settings")) settings();
        else if (is(line, "controls")) controls();
        else say("done\n");
    }
}
