/* longjmp out of deep frames, and contexts that switch stacks: stacks that vanish or change while a recorder has
 * memoized the last one. Each allocation has a known number of frames below it. */
#include "common.h"
#include <setjmp.h>
#include <ucontext.h>

static jmp_buf back;
static ucontext_t outer, fiber;
static volatile int deeper = 1;
static char fiber_stack[64 * 1024];

NOINLINE static void jump_block(size_t size) {
    void *p = malloc(size); /* @jump_block */
    KEEP(p);
}
NOINLINE static void sink_and_jump(int left) {
    if (left == 0) {
        jump_block(8001);
        longjmp(back, 1);
    }
    if (deeper) sink_and_jump(left - 1);
    KEEP(left);
}
NOINLINE static void sink_and_return(int left) {
    if (left == 0) {
        jump_block(8002);
    } else {
        sink_and_return(left - 1);
    }
    KEEP(left);
}
static void fiber_main(void) {
    for (;;) {
        jump_block(8003);
        swapcontext(&fiber, &outer);
    }
}

int main(void) {
    say("ready\n");
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = fiber_stack;
    fiber.uc_stack.ss_size = sizeof fiber_stack;
    fiber.uc_link = &outer;
    makecontext(&fiber, fiber_main, 0);
    for (;;) {
        if (!is(command(), "go")) continue;
        for (volatile int i = 0; i < 100; i++) {
            if (setjmp(back) == 0) sink_and_jump(20);
            sink_and_return(10);
            swapcontext(&outer, &fiber);
        }
        say("done\n");
    }
}
