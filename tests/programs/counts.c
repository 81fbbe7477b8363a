/* Exactly known allocations, each kind from its own function: counts, sizes, peak, and the function, file and line
 * of every stack. The program counts them itself and prints the figures. */
#include "common.h"
#include "counted.h"
#include <malloc.h>

static void *kept[4096];
static size_t nkept;

static void keep(void *p) {
    if (!p) fail("out of memory");
    kept[nkept++] = p;
}

NOINLINE static void plain(void) {
    for (int i = 0; i < 1000; i++) {
        void *p = malloc(100); /* @plain */
        took(100);
        fill(p, 100, (uint32_t)i);
        keep(p);
    }
}
NOINLINE static void plain_half_freed(size_t first) {
    for (int i = 0; i < 1000; i++) {
        check(kept[first + (size_t)i], 100, (uint32_t)i);
        if (i % 2 == 0) {
            free(kept[first + (size_t)i]);
            gave(100);
        }
    }
}
NOINLINE static void zeroed(void) {
    for (int i = 0; i < 7; i++) {
        char *p = calloc(10, 30); /* @zeroed */
        took(300);
        for (int k = 0; k < 300; k++) {
            if (p[k]) fail("calloc left %d", p[k]);
        }
        keep(p);
    }
}
NOINLINE static void chain(void) {
    char *p = malloc(10); /* @chain_start */
    took(10);
    fill(p, 10, 5);
    size_t size = 10;
    for (int i = 0; i < 12; i++) {
        p = realloc(p, size * 2); /* @chain_step */
        resized(size, size * 2);
        size *= 2;
        check(p, 10, 5);
    }
    keep(p); /* 40,960 bytes */
}
NOINLINE static void realloc_of_null(void) {
    void *p = realloc(NULL, 77); /* @realloc_of_null */
    took(77);
    keep(p);
}
NOINLINE static void realloc_shrinks(void) {
    void *p = malloc(5000);
    took(5000);
    KEEP(p);
    p = realloc(p, 50); /* @realloc_shrinks */
    resized(5000, 50);
    keep(p);
}
NOINLINE static void realloc_to_zero(void) {
    void *p = malloc(60); /* @realloc_to_zero */
    took(60);
    KEEP(p);
    void *q = realloc(p, 0);
    gave(60);
    if (q) keep(q); /* not under glibc, but some allocators do */
}
NOINLINE static void posix_aligned(void) {
    for (volatile int i = 0; i < 3; i++) { /* volatile: not unrolled, one call */
        void *p = NULL;
        if (posix_memalign(&p, 64, 200)) fail("posix_memalign"); /* @posix_aligned */
        if ((uintptr_t)p % 64) fail("posix_memalign gave %p", p);
        took(200);
        keep(p);
    }
}
NOINLINE static void c11_aligned(void) {
    for (volatile int i = 0; i < 2; i++) {
        void *p = aligned_alloc(128, 256); /* @c11_aligned */
        if ((uintptr_t)p % 128) fail("aligned_alloc gave %p", p);
        took(256);
        keep(p);
    }
}
NOINLINE static void old_aligned(void) {
    void *p = memalign(32, 48); /* @old_aligned */
    if ((uintptr_t)p % 32) fail("memalign gave %p", p);
    took(48);
    keep(p);
}
NOINLINE static void page_aligned(void) {
    void *p = valloc(111); /* @page_aligned */
    if ((uintptr_t)p % 4096) fail("valloc gave %p", p);
    took(111);
    keep(p);
}
NOINLINE static void whole_pages(void) {
    void *p = pvalloc(4096); /* @whole_pages */
    if ((uintptr_t)p % 4096) fail("pvalloc gave %p", p);
    took(4096);
    keep(p);
}
NOINLINE static void array(void) {
    void *p = reallocarray(NULL, 12, 10); /* @array_start */
    took(120);
    KEEP(p);
    p = reallocarray(p, 24, 10); /* @array_step */
    resized(120, 240);
    keep(p);
}
NOINLINE static void nothing(void) {
    for (volatile int i = 0; i < 4; i++) {
        void *p = malloc(0); /* @nothing */
        took(0);
        keep(p);
    }
}
NOINLINE static void refused(void) {
    volatile size_t huge = (size_t)3 << (8 * sizeof(size_t) - 2);
    void *p = malloc(50); /* @refused */
    took(50);
    KEEP(p);
    if (malloc(huge)) fail("malloc of more than there is");
    if (calloc(huge, 64)) fail("calloc beyond 2^64");
    if (realloc(p, huge)) fail("realloc to more than there is");
    void *unset = NULL;
    if (!posix_memalign(&unset, 3, 8)) fail("posix_memalign to 3");
    if (reallocarray(p, huge, 64)) fail("reallocarray beyond 2^64");
    free(NULL);
    keep(p); /* still there */
}
NOINLINE static void highest(void) {
    void *a = malloc(1 << 20); /* @highest_a */
    took(1 << 20);
    KEEP(a);
    void *b = malloc(2 << 20); /* @highest_b */
    took(2 << 20);
    KEEP(b);
    free(a);
    gave(1 << 20);
    free(b);
    gave(2 << 20);
}

int main(void) {
    void *before[5];
    for (int i = 0; i < 5; i++) before[i] = malloc(1000);
    void *old = malloc(2000);
    KEEP(old);
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (is(word, "go")) {
            size_t first = nkept;
            plain();
            plain_half_freed(first);
            zeroed();
            chain();
            realloc_of_null();
            realloc_shrinks();
            realloc_to_zero();
            posix_aligned();
            c11_aligned();
            old_aligned();
            page_aligned();
            whole_pages();
            array();
            nothing();
            refused();
            highest();
            say("done live_bytes=%zu live_count=%zu peak=%zu allocations=%zu frees=%zu "
                "reallocations=%zu allocated=%zu\n",
                live, live_blocks, peak, allocations, frees, reallocations, allocated);
        } else if (is(word, "old")) {
            for (int i = 0; i < 5; i++) {
                free(before[i]);
                before[i] = NULL;
            }
            say("done\n");
        } else if (is(word, "grow")) {
            old = realloc(old, 3333); /* @grow_old */
            KEEP(old);
            say("done\n");
        }
    }
}
