/* Makes a heap of every kind of chunk that glibc has, and tells what glibc itself says of it.
 *
 * "begin" makes the heap, "told" prints the figures of mallinfo and malloc_info. Threads keep their caches meanwhile. */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS 5
#define BLOCKS 6000

static void *blocks[THREADS + 1][BLOCKS];
static pthread_barrier_t made;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static unsigned seed[THREADS + 1];

static unsigned next(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Sizes of tcache, of fast bins, of small and of large bins; every third block is freed again. */
static void make(int who) {
    for (int i = 0; i < BLOCKS; i++) {
        unsigned r = next(&seed[who]);
        size_t size = r % 4 == 0 ? r / 4 % 20000 : r / 4 % 300;
        blocks[who][i] = malloc(size);
        memset(blocks[who][i], 0xa5, size);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (next(&seed[who]) % 3 == 0) {
            free(blocks[who][i]);
            blocks[who][i] = NULL;
        }
    }
}

/* More than one heap of an arena takes. */
#define MANY 800

static void *thread(void *arg) {
    make((int)(long)arg);
    if ((long)arg == 1 && getenv("CENSUS_HEAPS") != NULL)
        for (int i = 0; i < MANY; i++) *(volatile char *)malloc(100000) = 1;
    pthread_barrier_wait(&made);
    /* It keeps its cache while it waits. */
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    return NULL;
}

static void begin(void) {
    pthread_t t[THREADS];
    /* Nearly nothing more comes from brk. */
    if (getenv("CENSUS_BRK") != NULL) {
        uintptr_t end = ((uintptr_t)sbrk(0) + 500000) & ~(uintptr_t)0xffff;
        if (mmap((void *)end, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != (void *)end) abort();
    }
    pthread_mutex_lock(&held);
    pthread_barrier_init(&made, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++) {
        seed[i + 1] = 7 * i + 1;
        pthread_create(&t[i], NULL, thread, (void *)(i + 1));
    }
    make(0);
    pthread_barrier_wait(&made);
    /* Blocks with mappings of their own: plain ones, an aligned one, and one of pages that were never touched. */
    for (int i = 0; i < 3; i++) memset(malloc(300000 + i * 4096), 1, 300000);
    void *aligned = NULL;
    if (posix_memalign(&aligned, 256, 700000) == 0) memset(aligned, 1, 700000);
    /* Aligned ones whose size has changed: only the first header of the mapping still has the old one. The plain block
     * takes the memory that the second gives back. */
    static char *resized[2];
    for (int i = 0; i < 2; i++) {
        resized[i] = aligned_alloc(512, 400384);
        memset(resized[i], 1, 400384);
        resized[i] = realloc(resized[i], i == 0 ? 600000 : 200000);
    }
    memset(malloc(200000 - 24), 1, 100000);
    if (malloc(64 << 20) == NULL) abort();
    /* Somebody else's memory between that of the heap. */
    int live = 8;
    for (int who = 0; who <= THREADS; who++)
        for (int i = 0; i < BLOCKS; i++) live += blocks[who][i] != NULL;
    if (getenv("CENSUS_HEAPS") != NULL) live += MANY;
    if (getenv("CENSUS_SBRK") != NULL) {
        memset(sbrk(40000), 0x5a, 40000);
        /* More than is free in front of it. */
        for (int i = 0; i < 100; i++) memset(malloc(100000), 2, 100000);
        live += 100;
    }
    printf("live %d\n", live);
}

static volatile int churning;
static pthread_t churners[THREADS];

static void *churn(void *arg) {
    unsigned seed = (unsigned)(long)arg;
    void *own[200] = {0};
    while (churning) {
        unsigned r = next(&seed);
        void **p = &own[r % 200];
        free(*p);
        *p = malloc(r % 16 == 0 ? r / 16 % 60000 : r / 16 % 600);
    }
    for (int i = 0; i < 200; i++) free(own[i]);
    return NULL;
}

static void churn_all(int on) {
    churning = on;
    for (long i = 0; i < THREADS; i++) {
        if (on) pthread_create(&churners[i], NULL, churn, (void *)(i + 99));
        else pthread_join(churners[i], NULL);
    }
}

/* Frees a long list block by block: only the first one is pointed to by a variable. */
struct link { struct link *next; long rest[5]; };
struct link *volatile chain;
static pthread_t freer;

static void *pop(void *unused) {
    (void)unused;
    while (churning && chain != NULL) {
        struct link *first = chain;
        chain = first->next;
        free(first);
        usleep(50);
    }
    return NULL;
}

static void build(void) {
    for (int i = 0; i < 400000; i++) {
        struct link *l = calloc(1, sizeof *l);
        l->next = chain;
        chain = l;
    }
    churning = 1;
    pthread_create(&freer, NULL, pop, NULL);
}

static void told(void) {
    /* Once for what it needs itself. */
    FILE *f = fopen("/dev/null", "w");
    malloc_info(0, f);
    fclose(f);
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 m = mallinfo2();
#else
    struct mallinfo m = mallinfo();
#endif
    printf("arena %zu free %zu fast %zu mapped %zu mapped_blocks %zu top %zu\n", (size_t)m.arena, (size_t)m.fordblks,
           (size_t)m.fsmblks, (size_t)m.hblkhd, (size_t)m.hblks, (size_t)m.keepcost);
    malloc_info(0, stdout);
}

/* What a program does to its heap that writes over the end of a block, or frees one twice. */
static void damage(void) {
    /* Volatile, or the compiler leaves out what nobody reads. */
    volatile size_t *first = malloc(500);
    void *a = malloc(200), *b = malloc(200);
    free(a);
    free(b);
    volatile size_t *freed = b;
    /* The cache's list leads from b back to b. */
    *freed = ((size_t)b >> 12) ^ (size_t)b;
    /* The size of the block behind the first one lies far behind the end of the heap. */
    first[malloc_usable_size((void *)first) / sizeof *first] = ((size_t)-1 / 4 & ~(size_t)15) | 1;
}

/* The end of the main heap says that it is as long as can be. A free block leads to the arena: its list does. */
static void lie(void) {
    volatile size_t *first = malloc(70000);
    malloc(10);
    free((void *)first);
    size_t *top = *(size_t **)first[0];
    top[1] = (size_t)-1;
}

int main(void) {
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    printf("ready %d\n", getpid());
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strcmp(line, "begin\n") == 0) begin();
        else if (strcmp(line, "told\n") == 0) told();
        else if (strcmp(line, "churn\n") == 0) churn_all(1);
        else if (strcmp(line, "calm\n") == 0) churn_all(0);
        else if (strcmp(line, "chain\n") == 0) build();
        else if (strcmp(line, "unchain\n") == 0) churning = 0, pthread_join(freer, NULL);
        else if (strcmp(line, "damage\n") == 0) damage();
        else if (strcmp(line, "lie\n") == 0) lie();
        else break;
        printf("done\n");
    }
    printf("bye\n");
    fflush(stdout);
    /* Not through exit, which would free on a damaged heap. */
    _exit(0);
}
