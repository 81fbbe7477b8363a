/* Blocks of all kinds that glibc has: address, bytes requested, bytes usable, and kind. */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* The first is the size of a chunk that the second fits into, with less left over than a chunk needs. */
static const size_t hole_size = sizeof(void *) == 8 ? 3016 : 3012, next_size = sizeof(void *) == 8 ? 3000 : 3004;

static const char *kind = "main";

static void say(void *p, size_t size) {
    printf("%p %zu %zu %s\n", p, size, malloc_usable_size(p), kind);
}

static void *thread(void *arg) {
    for (size_t i = 0; i < 50; i++)
        say(malloc(1000 + i), 1000 + i);
    return arg;
}

int main(void) {
    setvbuf(stdout, malloc(1 << 16), _IOFBF, 1 << 16);
    for (size_t i = 0; i < 300; i++)
        say(malloc(i * 7), i * 7);
    /* Makes holes that a chunk fits into with some bytes left over, too few for another chunk. */
    void *hole[50];
    for (int i = 0; i < 50; i++) {
        hole[i] = malloc(hole_size);
        say(malloc(24), 24);
    }
    for (int i = 0; i < 50; i++)
        free(hole[i]);
    for (int i = 0; i < 50; i++)
        say(malloc(next_size), next_size);
    say(calloc(10, 33), 330);
    say(realloc(malloc(10), 7000), 7000);
    say(aligned_alloc(256, 512), 512);
    say(memalign(4096, 100), 100);
    void *p = NULL;
    if (posix_memalign(&p, 64, 100) == 0)
        say(p, 100);
    kind = "mmapped";
    for (size_t i = 1; i < 5; i++)
        say(malloc(i * 300000), i * 300000);
    say(realloc(malloc(400000), 500000), 500000);
    kind = "other";
    pthread_t t;
    pthread_create(&t, NULL, thread, NULL);
    pthread_join(t, NULL);
    fflush(stdout);
    return 0;
}
