/* An allocator linked into the executable, under the names that P() makes: "go" uses each function once. With -DX,
 * also jemalloc's own interface. */
#include "common.h"

#ifndef PREFIX
#define PREFIX
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define P(name) JOIN(PREFIX, name)

void *P(malloc)(size_t);
void *P(calloc)(size_t, size_t);
void *P(realloc)(void *, size_t);
void P(free)(void *);
int P(posix_memalign)(void **, size_t, size_t);

static void *keep[64];
static int kept;

NOINLINE static void *plain(void) {
    void *p = P(malloc)(100); /* @linked_plain */
    KEEP(p);
    return p;
}
NOINLINE static void *zeroed(void) {
    void *p = P(calloc)(3, 40); /* @linked_zeroed */
    KEEP(p);
    return p;
}
NOINLINE static void *resized(void *old) {
    void *p = P(realloc)(old, 5000); /* @linked_resized */
    KEEP(p);
    return p;
}
NOINLINE static void *aligned(void) {
    void *p = NULL;
    if (P(posix_memalign)(&p, 64, 200)) fail("posix_memalign"); /* @linked_aligned */
    KEEP(p);
    return p;
}

#ifdef X
void *P(mallocx)(size_t, int);
void *P(rallocx)(void *, size_t, int);
size_t P(xallocx)(void *, size_t, size_t, int);
void P(sdallocx)(void *, size_t, int);
void P(dallocx)(void *, int);

NOINLINE static void *extended(void) {
    void *p = P(mallocx)(64, 0); /* @linked_mallocx */
    KEEP(p);
    return p;
}
NOINLINE static void *exchanged(void *old) {
    void *p = P(rallocx)(old, 3000, 0); /* @linked_rallocx */
    KEEP(p);
    return p;
}
NOINLINE static size_t in_place(void *p, size_t size, size_t extra) {
    size_t n = P(xallocx)(p, size, extra, 0); /* @linked_xallocx */
    KEEP(n);
    return n;
}
NOINLINE static void own_interface(void) {
    void *p[5];
    for (int i = 0; i < 5; i++) fill(p[i] = extended(), 64, (uint32_t)i);
    check(p[0], 64, 0);
    P(sdallocx)(p[0], 64, 0);
    P(dallocx)(p[1], 0);
    keep[kept++] = exchanged(p[2]);
    check(keep[kept - 1], 64, 2);
    /* 64 bytes are a size class: 60 fit in place, 50,000 do not. */
    if (in_place(p[3], 60, 0) != 64) fail("xallocx");
    if (in_place(p[3], 50000, 0) >= 50000) fail("xallocx grew out of its place");
    check(p[3], 60, 3);
    keep[kept++] = p[3];
    keep[kept++] = p[4];
}
#endif

int main(void) {
    say("ready\n");
    for (;;) {
        if (!is(command(), "go")) continue;
        void *p[4];
        for (volatile int i = 0; i < 4; i++) fill(p[i] = plain(), 100, (uint32_t)i);
        for (volatile int i = 0; i < 3; i++) keep[kept++] = zeroed();
        for (volatile int i = 0; i < 2; i++) keep[kept++] = aligned();
        keep[kept++] = resized(p[0]);
        check(keep[kept - 1], 100, 0);
        P(free)(p[1]);
        keep[kept++] = p[2];
        keep[kept++] = p[3];
#ifdef X
        own_interface();
#endif
        say("done\n");
    }
}
