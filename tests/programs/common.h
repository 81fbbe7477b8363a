/* Shared by all test programs: a line protocol over stdin and stdout that never allocates, so that only a program's
 * own allocations are recorded. */
#ifndef PROF_TESTS_COMMON_H
#define PROF_TESTS_COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noipa))
/* Makes the compiler believe that p is used here: no elided allocation, no tail call before it. */
#define KEEP(p) __asm__ volatile("" : "+r"(p) : : "memory")

/* Prints one line (the caller passes the newline) with a single write(2). */
__attribute__((format(printf, 1, 2), unused)) static void say(const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (int at = 0; at < n;) {
        ssize_t done = write(1, line + at, (size_t)(n - at));
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) _exit(9);
        at += (int)done;
    }
}

/* Ends the program with a reason that the harness prints. */
__attribute__((format(printf, 1, 2), noreturn, unused)) static void fail(const char *format, ...) {
    char reason[512];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    say("FAILED %s\n", reason);
    _exit(8);
}

/* Reads the next command line; ends the program at "quit" and at the end of the input. */
__attribute__((unused)) static const char *command(void) {
    static char line[256];
    size_t n = 0;
    for (;;) {
        char c;
        ssize_t got = read(0, &c, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) _exit(0);
        if (c == '\n') break;
        if (n + 1 < sizeof line) line[n++] = c;
    }
    line[n] = 0;
    if (strcmp(line, "quit") == 0) {
        say("bye\n");
        exit(0);
    }
    return line;
}

__attribute__((unused)) static int is(const char *line, const char *word) {
    return strcmp(line, word) == 0;
}

/* Fills a block such that every byte follows from its seed, so that damage is detected. */
__attribute__((unused)) static void fill(void *block, size_t size, uint32_t seed) {
    unsigned char *b = (unsigned char *)block;
    for (size_t i = 0; i < size; i++) b[i] = (unsigned char)(seed * 31u + i * 7u + 3u);
}

__attribute__((unused)) static void check(const void *block, size_t size, uint32_t seed) {
    const unsigned char *b = (const unsigned char *)block;
    for (size_t i = 0; i < size; i++) {
        if (b[i] != (unsigned char)(seed * 31u + i * 7u + 3u)) {
            fail("byte %zu of a block of %zu is %u", i, size, b[i]);
        }
    }
}

/* A small random generator, with a state for each thread. */
__attribute__((unused)) static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}
#endif
