/* A program with a malloc of its own and no free: its blocks are never freed. Command: "go". */
#include "common.h"

static char memory[1 << 20] __attribute__((aligned(64)));
static size_t used;

__attribute__((visibility("default"), noinline, noipa)) void *malloc(size_t size) {
    size_t at = __atomic_fetch_add(&used, (size + 15) & ~(size_t)15, __ATOMIC_RELAXED);
    return at + size <= sizeof memory ? memory + at : NULL;
}

NOINLINE static void *bump_block(size_t size) {
    void *p = malloc(size); /* @bump_block */
    KEEP(p);
    return p;
}

int main(void) {
    say("ready\n");
    while (strcmp(command(), "go") == 0) {
        /* Volatile, or the compiler would make two calls. */
        for (volatile size_t size = 40; size <= 100; size += 60) memset(bump_block(size), 1, size);
        say("done\n");
    }
}
