/* Many blocks, as in real programs: "mixed ROUNDS" frees and allocates blocks of any size and of three stacks in any
 * order, and now and then frees two at once. */
#include "common.h"

enum { BLOCKS = 20000 };
static void *all[BLOCKS];

NOINLINE static void *one(size_t n) {
    void *p = malloc(n);
    KEEP(p);
    return p;
}
NOINLINE static void *two(size_t n) {
    void *p = malloc(n);
    KEEP(p);
    return p;
}
NOINLINE static void *three(size_t n) {
    void *p = malloc(n);
    KEEP(p);
    return p;
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 1000;
    int regular = argc > 2;
    uint32_t seed = 9;
    for (long i = 0; i < rounds; i++) {
        if (regular) {
            void *p = one(32 + i % 7 * 16), *q = two(100);
            free(q);
            free(p);
            continue;
        }
        uint32_t k = next_random(&seed) % BLOCKS;
        free(all[k]);
        size_t size = 16 + next_random(&seed) % 500;
        all[k] = k % 3 == 0 ? one(size) : k % 3 == 1 ? two(size) : three(size);
    }
    return 0;
}
