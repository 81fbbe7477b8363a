/* An allocator in a library of its own (-DLIBRARY -shared) that looks at its callers, and a program that uses it
 * (LD_PRELOAD). "walk"
 * has malloc unwind the stack, and says whether the program's main was found; "leave" has malloc end its thread, and says
 * whether the caller's cleanup ran; "alloc N" makes N blocks of 48 bytes; "interrupt" makes 100,000, while a timer's handler
 * unwinds the stack. */
#define _GNU_SOURCE
#ifdef LIBRARY
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unwind.h>

int walks_deed;
void *walks_searched;
int walks_found;
static char arena[64 << 20] __attribute__((aligned(64)));
static size_t used;

static void *function_of(struct _Unwind_Context *c) {
#ifdef __arm__
    return (void *)_Unwind_GetRegionStart(c); /* without the bit of Thumb code */
#else
    return _Unwind_FindEnclosingFunction((void *)_Unwind_GetIP(c));
#endif
}

static _Unwind_Reason_Code look(struct _Unwind_Context *c, void *unused) {
    (void)unused;
    if (function_of(c) == walks_searched) walks_found++;
    return _URC_NO_REASON;
}

void *malloc(size_t size) {
    size_t taken = (size + 31) & ~(size_t)15;
    char *block = arena + __atomic_fetch_add(&used, taken, __ATOMIC_RELAXED) + 16;
    if (block + size > arena + sizeof arena) return NULL;
    memcpy(block - 16, &size, sizeof size);
    int deed = walks_deed;
    walks_deed = 0;
    if (deed == 1) _Unwind_Backtrace(look, NULL);
    if (deed == 2) pthread_exit(NULL);
    return block;
}
void free(void *p) { (void)p; }
void *calloc(size_t n, size_t size) {
    return malloc(n * size); /* the arena is never used twice */
}
void *realloc(void *p, size_t size) {
    char *block = malloc(size);
    size_t old = 0;
    if (p) memcpy(&old, (char *)p - 16, sizeof old);
    if (block && p) memcpy(block, p, old < size ? old : size);
    return block;
}
#else
#include "common.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unwind.h>

static int *deed;
static int cleaned;
static void *blocks[4096];

NOINLINE static void *walked_block(void) {
    void *p = malloc(48); /* @walked_block */
    KEEP(p);
    return p;
}
static void clean(int *p) { cleaned += *p; }
static void *leaver(void *unused) {
    int one __attribute__((cleanup(clean))) = 1;
    (void)unused;
    *deed = 2;
    void *p = walked_block();
    KEEP(p);
    KEEP(one);
    return NULL;
}

static _Unwind_Reason_Code count(struct _Unwind_Context *c, void *frames) {
    (void)c;
    ++*(int *)frames;
    return _URC_NO_REASON;
}
static volatile int walked;
static void on_timer(int sig) {
    (void)sig;
    int frames = 0;
    _Unwind_Backtrace(count, &frames);
    walked = walked + (frames > 0);
}
static void timer(long us) {
    struct itimerval every = {.it_interval = {.tv_usec = us}, .it_value = {.tv_usec = us}};
    setitimer(ITIMER_REAL, &every, NULL);
}

int main(void) {
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    deed = dlsym(RTLD_DEFAULT, "walks_deed");
    int *found = dlsym(RTLD_DEFAULT, "walks_found");
    void **searched = dlsym(RTLD_DEFAULT, "walks_searched");
    if (!deed || !found || !searched) fail("the library is not there");
    *searched = (void *)main;
#ifdef __arm__
    *searched = (void *)((uintptr_t)main & ~(uintptr_t)1);
#endif
    say("ready\n");
    for (;;) {
        const char *word = command();
        int n;
        if (is(word, "walk")) {
            *found = 0;
            *deed = 1;
            void *p = walked_block();
            KEEP(p);
            say("done %d\n", *found);
        } else if (is(word, "leave")) {
            pthread_t thread;
            cleaned = 0;
            if (pthread_create(&thread, NULL, leaver, NULL)) fail("pthread_create");
            pthread_join(thread, NULL);
            say("done %d\n", cleaned);
        } else if (is(word, "interrupt")) {
            walked = 0;
            timer(500);
            for (n = 0; n < 100000; n++) blocks[n % 4096] = walked_block();
            timer(0);
            say("done %d\n", walked > 0);
        } else if (sscanf(word, "alloc %d", &n) == 1) {
            while (n-- > 0) blocks[n] = walked_block();
            KEEP(blocks[0]);
            say("done\n");
        }
    }
}
#endif
