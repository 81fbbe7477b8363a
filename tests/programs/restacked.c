/* A fiber's stack is given back, and a shorter one is mapped at the same address. On that one, code without unwind tables
 * has a frame pointer to where only the first one was. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <ucontext.h>

enum { LONG = 64, SHORT = 8 };

static size_t page;
static char *stack;
static ucontext_t back, fiber;
static void (*work)(void);

NOINLINE static void allocate(void) {
    void *p = malloc(123); /* @on_fiber */
    KEEP(p);
    free(p);
}

static void begin(void) {
    work();
}

/* Runs a function on the fiber's stack of so many pages. */
static void run(size_t pages, void (*what)(void)) {
    work = what;
    if (getcontext(&fiber)) fail("getcontext");
    fiber.uc_stack.ss_sp = stack;
    fiber.uc_stack.ss_size = pages * page;
    fiber.uc_link = &back;
    makecontext(&fiber, begin, 0);
    if (swapcontext(&back, &fiber)) fail("swapcontext");
}

#ifdef __x86_64__
/* push rbp; mov rbp, rdi; call rsi; pop rbp; ret */
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xfd, 0xff, 0xd6, 0x5d, 0xc3};
static char *generated;

static void astray(void) {
    void (*call)(char *, void (*)(void));
    memcpy(&call, &generated, sizeof call);
    call(stack + (LONG - 8) * page, allocate);
}

static void make_code(void) {
    generated = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (generated == MAP_FAILED) fail("mmap");
    memcpy(generated, code, sizeof code);
    if (mprotect(generated, page, PROT_READ | PROT_EXEC)) fail("mprotect");
}
#else
static void astray(void) {
    allocate();
}

static void make_code(void) {}
#endif

static void map_stack(size_t pages, int flags) {
    int all = MAP_PRIVATE | MAP_ANONYMOUS | flags;
    char *at = mmap(stack, pages * page, PROT_READ | PROT_WRITE, all, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    stack = at;
    /* The hook takes pages for a stack as far as they can be read. */
    memset(stack, 0, pages * page);
}

int main(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    make_code();
    /* Nothing else is to be behind it. */
    char *room = mmap(NULL, 4 * LONG * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) fail("mmap");
    say("ready\n");
    for (;;) {
        command();
        stack = room + LONG * page;
        map_stack(LONG, MAP_FIXED);
        run(LONG, allocate);
        if (munmap(stack, LONG * page)) fail("munmap");
        map_stack(SHORT, MAP_FIXED);
        run(SHORT, astray);
        if (munmap(stack, SHORT * page)) fail("munmap");
        say("done\n");
    }
}
