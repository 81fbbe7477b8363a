/* A heap of every kind of block, some threads of which change it at full speed while somebody attaches, and what the
 * program and glibc say of it in a quiet moment.
 *
 * "begin" makes the heap and its threads, "churn" and "calm" let the threads work and stop, "mix" frees, resizes and adds
 * blocks, "count" tells what there is. The number of threads is the argument. The threads stay, as one that ends gives back memory that it never asked for. */
#include "common.h"
#include <malloc.h>
#include <pthread.h>

#define THREADS 32
#define BLOCKS 5000
#define OWN 200
#define MAPPED 6

struct block { void *at; size_t size; };
static struct block kept[THREADS + 1][BLOCKS];
static struct block own[THREADS][OWN];
static struct block mapped[MAPPED];
static pthread_t threads[THREADS];
static int started = 4;
static pthread_barrier_t turn;
static volatile int mixes, churns, resting;
static volatile long changes;

static unsigned next(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void get(struct block *b, size_t size) {
    b->at = malloc(size);
    b->size = size;
    if (b->at == NULL) fail("no memory");
    memset(b->at, 1, size);
}

static void drop(struct block *b) {
    free(b->at);
    b->at = NULL;
}

static void resize(struct block *b, size_t size) {
    b->at = realloc(b->at, size);
    b->size = size;
    if (b->at == NULL) fail("no memory");
}

static void make(int who) {
    unsigned seed = 31 * who + 7;
    for (int i = 0; i < BLOCKS; i++) {
        unsigned r = next(&seed);
        size_t size = r % 8 == 0 ? r / 8 % 20000 : r / 8 % 400;
        if (r % 16 == 3) {
            kept[who][i].size = size + 1;
            if (posix_memalign(&kept[who][i].at, 64 << r % 3, size + 1) != 0) fail("no memory");
        } else {
            get(&kept[who][i], size);
        }
    }
    for (int i = 0; i < BLOCKS; i += 5) drop(&kept[who][i]);
}

/* What becomes of blocks from before: of five one stays, one is freed by another thread, one grows, one shrinks; the
 * place of the fifth gets a new block. */
static void mix(int who) {
    int other = (who + 1) % (started + 1);
    for (int i = 0; i < BLOCKS; i += 5) {
        drop(&kept[other][i + 1]);
        resize(&kept[who][i + 2], kept[who][i + 2].size * 3 + 10);
        resize(&kept[who][i + 3], kept[who][i + 3].size / 2 + 1);
        get(&kept[who][i], i % 700);
    }
}

/* Blocks with mappings of their own are made and dropped, too: then the mappings change during the attach. */
static void churn(int who) {
    unsigned seed = 77 + who;
    while (churns) {
        unsigned r = next(&seed);
        struct block *b = &own[who][r % OWN];
        if (b->at != NULL && r % 3 == 0) resize(b, r / 8 % 3000 + 1);
        else if (b->at != NULL) drop(b);
        else get(b, r % 512 == 9 ? 200000 + r % 100000 : r / 8 % 2000);
        __atomic_add_fetch(&changes, 1, __ATOMIC_RELAXED);
    }
}

static void *work(void *arg) {
    int who = (int)(long)arg;
    make(who + 1);
    for (;;) {
        pthread_barrier_wait(&turn);
        if (churns) churn(who);
        else if (mixes) mix(who + 1);
        pthread_barrier_wait(&turn);
    }
    return NULL;
}

static void begin(void) {
    pthread_barrier_init(&turn, NULL, started + 1);
    for (long i = 0; i < started; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0) fail("no thread");
    make(0);
    for (int i = 0; i < MAPPED; i++) get(&mapped[i], 300000 + 5000 * i);
    /* All have come as far as this. */
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
}

static void mix_all(void) {
    mixes = 1;
    pthread_barrier_wait(&turn);
    mix(0);
    pthread_barrier_wait(&turn);
    mixes = 0;
    drop(&mapped[0]);
    resize(&mapped[1], 900000);
    resize(&mapped[2], 1000);
    get(&mapped[0], 500000);
}

static void count(void) {
    if (churns) {
        say("count 0 0 0 %ld\n", changes);
        return;
    }
    long n = 0;
    size_t usable = 0;
    for (int who = 0; who <= THREADS; who++)
        for (int i = 0; i < BLOCKS; i++)
            if (kept[who][i].at != NULL) n++, usable += malloc_usable_size(kept[who][i].at);
    for (int who = 0; who < THREADS; who++)
        for (int i = 0; i < OWN; i++)
            if (own[who][i].at != NULL) n++, usable += malloc_usable_size(own[who][i].at);
    for (int i = 0; i < MAPPED; i++)
        if (mapped[i].at != NULL) n++, usable += malloc_usable_size(mapped[i].at);
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 m = mallinfo2();
#else
    struct mallinfo m = mallinfo();
#endif
    say("count %ld %zu %zu %ld\n", n, usable, (size_t)m.uordblks + (size_t)m.hblkhd, changes);
}

int main(int argc, char **argv) {
    if (argc > 1) started = atoi(argv[1]);
    if (started < 1 || started > THREADS) fail("%d threads", started);
    say("ready %d\n", getpid());
    for (;;) {
        const char *c = command();
        if (strcmp(c, "begin") == 0) begin();
        else if (strcmp(c, "churn") == 0) churns = 1, pthread_barrier_wait(&turn);
        else if (strcmp(c, "calm") == 0) churns = 0, pthread_barrier_wait(&turn);
        else if (strcmp(c, "mix") == 0) mix_all();
        else if (strcmp(c, "count") == 0) count();
        else fail("what is %s?", c);
        say("done\n");
    }
}
