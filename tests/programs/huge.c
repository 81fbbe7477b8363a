/* The program works on a stack in a huge page, if the kernel has any; the stack is executable, as on some
 * architectures. "go": allocates another block. */
#include "common.h"
#include <sys/mman.h>
#include <ucontext.h>

static ucontext_t here, there;

NOINLINE static void huge_block(void) {
    void *p = malloc(777); /* @huge_block */
    KEEP(p);
}
static void loop(void) {
    say("ready\n");
    for (;;) {
        command();
        huge_block();
        say("done\n");
    }
}

int main(void) {
    size_t size = 4 << 20;
    int prot = PROT_READ | PROT_WRITE | PROT_EXEC;
    char *room = mmap(NULL, 2 * size, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) fail("mmap: %d", errno);
    char *stack = room + (-(uintptr_t)room & (size - 1));
    madvise(stack, size, MADV_HUGEPAGE);
    memset(stack, 0, size);
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = size;
    makecontext(&there, loop, 0);
    return swapcontext(&here, &there);
}
