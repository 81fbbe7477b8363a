/* A fiber that is switched away inside an allocating function, as may happen in one that waits for memory. "start"
 * runs it up to there, "alloc" allocates on the thread's own stack, "resume" lets it return, and "move" makes
 * another thread do that. */
#include "common.h"
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

static ucontext_t outside, fiber;
static void *lent;
static volatile int returned;

NOINLINE void *lent_block(size_t size) {
    void *p = malloc(size);
    if (!p) fail("malloc");
    fill(p, size, 7);
    if (swapcontext(&fiber, &outside)) fail("swapcontext");
    check(p, size, 7);
    return p;
}
static void body(void) {
    lent = lent_block(3001); /* @lent_block */
    check(lent, 3001, 7);
    returned = 1;
    swapcontext(&fiber, &outside);
}
static void *enter(void *nothing) {
    if (swapcontext(&outside, &fiber)) fail("swapcontext");
    return nothing;
}
static void finish(void) {
    if (!returned) fail("the fiber has not returned");
    free(lent);
    say("done\n");
}

int main(void) {
    size_t size = 256 << 10;
    void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) fail("mmap");
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "start")) {
            returned = 0;
            if (getcontext(&fiber)) fail("getcontext");
            fiber.uc_stack.ss_sp = stack;
            fiber.uc_stack.ss_size = size;
            fiber.uc_link = NULL;
            makecontext(&fiber, body, 0);
            enter(NULL);
            say("done\n");
        } else if (is(line, "alloc")) {
            for (int i = 0; i < 100; i++) {
                void *p = malloc(100);
                KEEP(p);
                free(p);
            }
            say("done\n");
        } else if (is(line, "resume")) {
            enter(NULL);
            finish();
        } else if (is(line, "move")) {
            pthread_t other;
            if (pthread_create(&other, NULL, enter, NULL)) fail("pthread_create");
            pthread_join(other, NULL);
            finish();
        }
    }
}
