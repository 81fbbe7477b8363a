/* A program that damages its heap, when it is told to, in the way that its argument names. */
#include "common.h"

static void *volatile kept;

static void overwrite(volatile char *p, int n) {
    for (int i = 0; i < n; i++) p[i] = (char)0xff;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    char *volatile a = malloc(40), *volatile b = malloc(2000), *volatile c = malloc(2000);
    kept = malloc(40);
    say("ready\n");
    command();
    if (is(how, "double")) {
        free(a);
        free(a);
    } else if (is(how, "double-large")) {
        free(b);
        free(b);
    } else if (is(how, "invalid")) {
        free(a + 8);
    } else if (is(how, "not-heap")) {
        static char where[64];
        free(where + 16);
    } else if (is(how, "overrun")) {
        overwrite(b, 2100);
        free(c);
        free(b);
    } else if (is(how, "top")) {
        /* The last block of the heap, also if there are free ones. */
        char *volatile last = NULL;
        for (int i = 0; i < 1000; i++) last = malloc(24);
        overwrite(last, 64);
        kept = malloc(100000);
    } else if (is(how, "wild")) {
        kept = realloc((void *)0x1234567, 10);
    }
    say("survived\n");
    command();
}
