/* Resident memory of every kind: blocks from before, some of which are freed; new ones of two threads, half of which
 * are freed; blocks mapped on their own; arenas that the program maps itself, as Python does; a large range with a
 * guard page below, as in browsers. "stats" prints the allocator's own figures at that moment. */
#include "common.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

enum { BLOCKS = 150000, LARGE = 12, ARENA = 1 << 20, ARENAS = 32, GUARDED = 20 << 20 };
static void *old[BLOCKS], *new[2][BLOCKS], *large[LARGE];
static pthread_barrier_t step;

static void *block(size_t size) {
    char *p = malloc(size);
    KEEP(p);
    memset(p, 1, size);
    return p;
}
static void fill_all(void **all, uint32_t seed) {
    for (int i = 0; i < BLOCKS; i++) all[i] = block(16 + next_random(&seed) % 1200);
}
static void free_part(void **all, int of) {
    for (int i = 0; i < BLOCKS; i++) {
        if (i % of) free(all[i]), all[i] = 0;
    }
}
static void *other(void *arg) {
    (void)arg;
    pthread_barrier_wait(&step);
    fill_all(new[1], 77);
    free_part(new[1], 2);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step); /* never */
    return 0;
}
static char *mapped(size_t len) {
    char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    return p;
}
static void go(void) {
    for (int i = LARGE / 2; i < LARGE; i++) large[i] = block(400000);
    for (int i = 0; i < ARENAS; i++) memset(mapped(ARENA), 1, ARENA);
    char *p = mapped(GUARDED);
    if (mprotect(p, 4096 * 16, PROT_NONE)) fail("mprotect");
    memset(p + 4096 * 16, 1, GUARDED - 4096 * 16);
    fill_all(new[0], 99);
    free_part(new[0], 2);
    free_part(old, 3);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
}
static void stats(void) {
    int (*mallctl)(const char *, void *, size_t *, void *, size_t) = dlsym(RTLD_DEFAULT, "mallctl");
    if (mallctl) {
        uint64_t epoch = 1;
        size_t resident = 0, len = sizeof resident;
        mallctl("epoch", 0, 0, &epoch, sizeof epoch);
        if (mallctl("stats.resident", &resident, &len, 0, 0)) fail("mallctl");
        say("resident %zu\n", resident);
        return;
    }
    struct mallinfo2 m = mallinfo2();
    say("used %zu free %zu own %zu mapped %zu\n", m.uordblks + m.hblkhd, m.fordblks,
        (size_t)ARENA * ARENAS + GUARDED - 4096 * 16, m.hblkhd);
}
int main(void) {
    pthread_t t;
    pthread_barrier_init(&step, 0, 2);
    fill_all(old, 5);
    for (int i = 0; i < LARGE / 2; i++) large[i] = block(300000);
    if (pthread_create(&t, 0, other, 0)) fail("pthread_create");
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "go")) {
            go();
            say("done\n");
        } else {
            stats();
        }
    }
}
