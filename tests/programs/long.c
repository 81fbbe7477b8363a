/* A function of some ten thousand instructions, as in interpreters, that allocates at its end. It keeps addresses of
 * its frame for all of its length. */
#include "common.h"

#define STEP(n) x = (x ^ table[(x + n) & 63]) * 3 + n;
#define STEP4(n) STEP(n) STEP(n + 1) STEP(n + 2) STEP(n + 3)
#define STEP16(n) STEP4(n) STEP4(n + 4) STEP4(n + 8) STEP4(n + 12)
#define STEP64(n) STEP16(n) STEP16(n + 16) STEP16(n + 32) STEP16(n + 48)
#define STEP256(n) STEP64(n) STEP64(n + 64) STEP64(n + 128) STEP64(n + 192)

NOINLINE static unsigned prepare(unsigned *table, char *name) {
    for (unsigned i = 0; i < 64; i++) table[i] = i * 2654435761u;
    return (unsigned)snprintf(name, 11, "table");
}

NOINLINE static void long_block(unsigned x) {
    void *p = malloc(4001 + x % 2); /* @long_block */
    KEEP(p);
}

NOINLINE static unsigned long_function(unsigned x) {
    char name[11];
    unsigned table[64];
    x += prepare(table, name);
    STEP256(0) STEP256(256) STEP256(512) STEP256(768)
    if (x & 1) x += prepare(table, name + 3);
    STEP256(1024) STEP256(1280) STEP256(1536) STEP256(1792)
    long_block(x & ~1u);
    return x + prepare(table, name);
}

int main(void) {
    say("ready\n");
    for (;;) {
        if (!is(command(), "go")) continue;
        unsigned x = 1;
        for (int i = 0; i < 10; i++) x = long_function(x);
        say("done %u\n", x);
    }
}
