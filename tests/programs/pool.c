/* Allocators of the program's own. "go": uses a pool that takes its memory from malloc, with the size and the block
 * at unusual places among the arguments, and a bump allocator that does not. */
#include "common.h"

struct pool {
    char *at, *end;
};
static struct pool pool;
static void *keep[64];
static int kept;
static char arena[1 << 16] __attribute__((aligned(64)));
static size_t used;

#define EXPORT __attribute__((visibility("default"), noinline, noipa))

EXPORT void *pool_get(struct pool *p, int tag, size_t size) {
    if (tag != 7) fail("tag %d", tag);
    size = (size + 15) & ~(size_t)15;
    if (size > (size_t)(p->end - p->at)) {
        size_t slab = size + 65536;
        p->at = malloc(slab);
        p->end = p->at + slab;
    }
    void *block = p->at;
    p->at += size;
    return block;
}
/* Six arguments, and a result that is not a pointer. */
EXPORT int pool_put(struct pool *p, int a, int b, int c, int d, void *block) {
    if (a + b + c + d != 10) fail("arguments");
    memset(block, 0, 8);
    return p == &pool ? 42 : 0;
}
EXPORT void *pool_grow(size_t size, int tag, void *block, struct pool *p, int four, int five) {
    if (four != 4 || five != 5) fail("arguments of pool_grow");
    void *new = pool_get(p, tag, size);
    if (block) memcpy(new, block, 32);
    return new;
}
/* Not exported: found only by the symbol table. */
NOINLINE static void *bump(size_t size) {
    void *block = arena + used;
    used += (size + 15) & ~(size_t)15;
    KEEP(block);
    return block;
}

NOINLINE static void *from_pool(size_t size) {
    void *p = pool_get(&pool, 7, size); /* @from_pool */
    KEEP(p);
    return p;
}
NOINLINE static void *grown(void *block) {
    void *p = pool_grow(300, 7, block, &pool, 4, 5); /* @grown */
    KEEP(p);
    return p;
}
NOINLINE static void *bumped(void) {
    void *p = bump(24); /* @bumped */
    KEEP(p);
    return p;
}
NOINLINE static void *usual(void) {
    void *p = malloc(77); /* @pool_usual */
    KEEP(p);
    return p;
}

int main(void) {
    say("ready\n");
    for (;;) {
        if (!is(command(), "go")) continue;
        void *p[6];
        for (int i = 0; i < 6; i++) fill(p[i] = from_pool(100), 100, (uint32_t)i);
        for (int i = 0; i < 2; i++) {
            check(p[i], 100, (uint32_t)i);
            if (pool_put(&pool, 1, 2, 3, 4, p[i]) != 42) fail("pool_put");
        }
        keep[kept++] = grown(p[2]);
        check(keep[kept - 1], 32, 2);
        for (int i = 0; i < 3; i++) keep[kept++] = bumped();
        keep[kept++] = usual();
        say("done\n");
    }
}
