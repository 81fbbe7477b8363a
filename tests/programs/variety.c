/* A heap with blocks of every kind, and what the program and its allocator say of it. "plain" as an argument: there is no
 * jemalloc.
 *
 * "begin" makes the heap: its threads stay but for two, and keep their caches. "mix" frees, resizes and adds blocks,
 * "churn" and "calm" let the threads change their own blocks at full speed and stop. "told" prints jemalloc's figures,
 * "list" every block that the program has, by address and usable size. "leak" forgets some blocks. "alone" makes blocks in
 * the first thread only, and "visited" prints how many mimalloc says are in its heap, "figures" those of tcmalloc. "extreme" makes blocks that mimalloc
 * has segments for. */
#include "common.h"
#include <malloc.h>
#include <pthread.h>

extern int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));
extern void *mallocx(size_t, int) __attribute__((weak));
extern void dallocx(void *, int) __attribute__((weak));

/* What tcmalloc says of itself. */
extern int MallocExtension_GetNumericProperty(const char *, size_t *) __attribute__((weak));

/* A function that mimalloc calls with each area (no block) and with each block of a heap. */
typedef _Bool visitor(const void *heap, const void *area, void *block, size_t size, void *arg);
extern _Bool mi_heap_visit_blocks(const void *, _Bool, visitor *, void *) __attribute__((weak));
extern void *mi_heap_get_default(void) __attribute__((weak));

#define THREADS 6
#define ENDING 2
#define BLOCKS 4000
#define OWN 200
#define LARGE 40
#define SPECIAL 300
#define LEAKED 100

static void *kept[THREADS + 1][BLOCKS];
static void *own[THREADS][OWN];
static void *large[LARGE];
static void *special[SPECIAL];
static pthread_t threads[THREADS];
static pthread_barrier_t turn, made;
static volatile int churns, mixes;
static volatile long changes;

static unsigned next(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void *get(size_t size) {
    void *p = malloc(size);
    if (p == NULL) fail("no memory");
    memset(p, 1, size);
    return p;
}

static void drop(void **p) {
    free(*p);
    *p = NULL;
}

static void make(int who) {
    unsigned seed = 31 * who + 7;
    for (int i = 0; i < BLOCKS; i++) {
        unsigned r = next(&seed);
        size_t size = r % 16 == 0 ? r / 16 % 60000 : r / 16 % 700;
        if (r % 32 == 3) {
            if (posix_memalign(&kept[who][i], 16 << r / 32 % 9, size + 1) != 0) fail("no memory");
        } else {
            kept[who][i] = get(size);
        }
    }
    for (int i = 0; i < BLOCKS; i += 3) drop(&kept[who][i]);
    for (int i = 1; i < BLOCKS; i += 9) kept[who][i] = realloc(kept[who][i], i % 3000 + 1);
}

static void mix(int who) {
    int other = (who + 1) % (THREADS + 1);
    for (int i = 0; i < BLOCKS; i += 5) {
        drop(&kept[other][i + 1]);
        kept[who][i + 2] = realloc(kept[who][i + 2], i * 7 % 5000 + 1);
        if (kept[who][i] == NULL) kept[who][i] = get(i % 900);
    }
}

static void churn(int who) {
    unsigned seed = 77 + who;
    while (churns) {
        unsigned r = next(&seed);
        void **p = &own[who][r % OWN];
        if (*p != NULL && r % 3 == 0) *p = realloc(*p, r / 8 % 3000 + 1);
        else if (*p != NULL) drop(p);
        else *p = get(r % 512 == 9 ? 200000 + r % 100000 : r / 8 % 2000);
        __atomic_add_fetch(&changes, 1, __ATOMIC_RELAXED);
    }
}

static void *work(void *arg) {
    int who = (int)(long)arg;
    make(who + 1);
    pthread_barrier_wait(&made);
    if (who < ENDING) return NULL;
    for (;;) {
        pthread_barrier_wait(&turn);
        if (churns) churn(who);
        else if (mixes) mix(who + 1);
        pthread_barrier_wait(&turn);
    }
    return NULL;
}

static size_t told(const char *name) {
    size_t value = 0, len = sizeof value;
    if (mallctl(name, &value, &len, NULL, 0) != 0) fail("%s", name);
    return value;
}

/* Blocks from an arena and a cache that the program has made itself, which many others are freed into. */
static void make_special(void) {
    unsigned arena = 0, cache = 0;
    size_t len = sizeof arena;
    if (mallctl("arenas.create", &arena, &len, NULL, 0) || mallctl("tcache.create", &cache, &len, NULL, 0))
        fail("no arena or cache");
    int flags = (int)((arena + 1) << 20 | (cache + 2) << 8);
    for (int i = 0; i < SPECIAL; i++) special[i] = mallocx((size_t)i * 90 + 1, flags);
    for (int i = 0; i < SPECIAL; i += 2) dallocx(special[i], flags), special[i] = NULL;
}

static void begin(void) {
    pthread_barrier_init(&turn, NULL, THREADS - ENDING + 1);
    pthread_barrier_init(&made, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0) fail("no thread");
    make(0);
    pthread_barrier_wait(&made);
    for (int i = 0; i < ENDING; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < LARGE; i++) {
        if (i % 4 == 3) {
            if (posix_memalign(&large[i], 4096 << i % 10, 10000 * (i + 1)) != 0) fail("no memory");
        } else {
            large[i] = get(15000 * (i + 1));
        }
    }
    for (int i = 0; i < LARGE; i += 5) drop(&large[i]);
    large[1] = realloc(large[1], 3 << 20);
    large[2] = realloc(large[2], 100);
    large[0] = malloc((size_t)1 << 30);
    if (mallctl != NULL) make_special();
}

static void turn_all(void) {
    pthread_barrier_wait(&turn);
    mix(0);
    pthread_barrier_wait(&turn);
}

static void each(void (*take)(void *)) {
    for (int w = 0; w <= THREADS; w++)
        for (int i = 0; i < BLOCKS; i++) take(kept[w][i]);
    for (int w = 0; w < THREADS; w++)
        for (int i = 0; i < OWN; i++) take(own[w][i]);
    for (int i = 0; i < LARGE; i++) take(large[i]);
    for (int i = 0; i < SPECIAL; i++) take(special[i]);
}

static void list_one(void *p) {
    if (p != NULL) say("block %zx %zu\n", (size_t)p, malloc_usable_size(p));
}

static void tell(void) {
    uint64_t epoch = 1;
    size_t len = sizeof epoch;
    if (mallctl("epoch", &epoch, &len, &epoch, sizeof epoch) != 0) fail("epoch");
    /* 4096 stands for all arenas together. */
    say("told allocated %zu active %zu cached %zu dirty %zu muzzy %zu changes %ld\n", told("stats.allocated"),
        told("stats.active"), told("stats.arenas.4096.tcache_bytes"), 4096 * told("stats.arenas.4096.pdirty"),
        4096 * told("stats.arenas.4096.pmuzzy"), changes);
}

static void alone(void) {
    make(0);
    for (int i = 0; i < LARGE; i++) large[i] = get(15000 * (i + 1));
    for (int i = 0; i < LARGE; i += 3) drop(&large[i]);
}

/* Alignments and sizes at and around those for which a segment is made. */
static void extreme(void) {
    for (int i = 0; i < 6; i++)
        if (posix_memalign(&special[i], (size_t)1 << (22 + i), 100000 * (i + 1)) != 0) fail("no memory");
    special[6] = malloc((size_t)17 << 20);
    special[7] = malloc((size_t)40 << 20);
    special[8] = malloc((size_t)5 << 30);
    special[9] = malloc((size_t)15 << 20);
    special[10] = malloc((size_t)70 << 20);
    drop(&special[10]);
}

static _Bool count_one(const void *heap, const void *area, void *block, size_t size, void *arg) {
    size_t *sum = arg;
    if (block != NULL) sum[0]++, sum[1] += size;
    return heap != NULL && area != NULL;
}

static void visited(void) {
    size_t sum[2] = {0, 0};
    if (mi_heap_visit_blocks == NULL) fail("no mimalloc");
    mi_heap_visit_blocks(mi_heap_get_default(), 1, count_one, sum);
    say("visited %zu %zu\n", sum[0], sum[1]);
}

static size_t property(const char *name) {
    size_t value = 0;
    if (!MallocExtension_GetNumericProperty(name, &value)) fail("%s", name);
    return value;
}

static void figures(void) {
    if (MallocExtension_GetNumericProperty == NULL) fail("no tcmalloc");
    say("figures allocated %zu central %zu transfer %zu thread %zu free %zu unmapped %zu\n",
        property("generic.current_allocated_bytes"), property("tcmalloc.central_cache_free_bytes"),
        property("tcmalloc.transfer_cache_free_bytes"), property("tcmalloc.thread_cache_free_bytes"),
        property("tcmalloc.pageheap_free_bytes"), property("tcmalloc.pageheap_unmapped_bytes"));
}

/* Blocks that nobody knows any more. */
static NOINLINE void leak(void) {
    for (int i = 0; i < LEAKED; i++) {
        void *p = get(2000 + i % 5);
        KEEP(p);
    }
}

int main(int argc, char **argv) {
    int plain = argc > 1 && is(argv[1], "plain");
    if ((mallctl == NULL) != plain) fail("jemalloc is there, or not");
    say("ready %d\n", getpid());
    for (;;) {
        const char *c = command();
        if (strcmp(c, "begin") == 0) begin();
        else if (strcmp(c, "churn") == 0) churns = 1, pthread_barrier_wait(&turn);
        else if (strcmp(c, "calm") == 0) churns = 0, pthread_barrier_wait(&turn);
        else if (strcmp(c, "mix") == 0) mixes = 1, turn_all(), mixes = 0;
        else if (strcmp(c, "told") == 0) tell();
        else if (strcmp(c, "list") == 0) each(list_one);
        else if (strcmp(c, "leak") == 0) leak();
        else if (strcmp(c, "alone") == 0) alone();
        else if (strcmp(c, "extreme") == 0) extreme();
        else if (strcmp(c, "visited") == 0) visited();
        else if (strcmp(c, "figures") == 0) figures();
        else fail("what is %s?", c);
        say("done\n");
    }
}
