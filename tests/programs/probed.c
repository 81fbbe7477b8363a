/* For uprobes: libc's functions, which have room for a probe at their entry beside a patch, and one that has none,
 * as its first instruction changes an argument. "go" calls each a hundred times. */
#include "common.h"

void *odd_malloc(size_t size);
void odd_free(void *block);
#ifdef __aarch64__
__asm__(".text\n"
        ".globl odd_malloc\n.type odd_malloc, %function\n.p2align 4\n"
        "odd_malloc:\n.cfi_startproc\n"
        "mov x1, x0\n"
        "add x0, x1, #16\n"
        "stp x29, x30, [sp, #-16]!\n.cfi_def_cfa_offset 16\n.cfi_offset 29, -16\n.cfi_offset 30, -8\n"
        "bl malloc\n"
        "ldp x29, x30, [sp], #16\n.cfi_def_cfa_offset 0\n"
        "ret\n.cfi_endproc\n.size odd_malloc, .-odd_malloc\n"
        ".globl odd_free\n.type odd_free, %function\n.p2align 4\n"
        "odd_free:\n.cfi_startproc\n"
        "mov x1, x0\n"
        "mov x2, #0\n"
        "mov x0, x1\n"
        "b free\n.cfi_endproc\n.size odd_free, .-odd_free\n");
#elif defined __mips64
#define GP(f) "lui $28, %hi(%neg(%gp_rel(" f ")))\ndaddu $28, $28, $25\ndaddiu $28, $28, %lo(%neg(%gp_rel(" f ")))\n"
__asm__(".text\n.set push\n.set noreorder\n"
        ".globl odd_malloc\n.type odd_malloc, @function\n.p2align 4\n"
        "odd_malloc:\n.cfi_startproc\n"
        "move $5, $4\n"
        "daddiu $4, $5, 16\n"
        "daddiu $29, $29, -16\n.cfi_def_cfa_offset 16\n"
        "sd $31, 8($29)\nsd $28, 0($29)\n.cfi_offset 31, -8\n.cfi_offset 28, -16\n" GP("odd_malloc")
        "ld $25, %call16(malloc)($28)\njalr $25\nnop\n"
        "ld $31, 8($29)\nld $28, 0($29)\njr $31\ndaddiu $29, $29, 16\n"
        ".cfi_endproc\n.size odd_malloc, .-odd_malloc\n"
        ".globl odd_free\n.type odd_free, @function\n.p2align 4\n"
        "odd_free:\n.cfi_startproc\n"
        "move $5, $4\n"
        "daddiu $29, $29, -16\n.cfi_def_cfa_offset 16\n"
        "sd $31, 8($29)\nsd $28, 0($29)\n.cfi_offset 31, -8\n.cfi_offset 28, -16\n" GP("odd_free")
        "ld $25, %call16(free)($28)\njalr $25\nmove $4, $5\n"
        "ld $31, 8($29)\nld $28, 0($29)\njr $31\ndaddiu $29, $29, 16\n"
        ".cfi_endproc\n.size odd_free, .-odd_free\n.set pop\n");
#else
__asm__(".text\n"
        ".globl odd_malloc\n.type odd_malloc, @function\n.p2align 4\n"
        "odd_malloc:\n.cfi_startproc\n"
        "mov %rdi, %rsi\n"
        "lea 16(%rsi), %rdi\n"
        "sub $8, %rsp\n.cfi_adjust_cfa_offset 8\n"
        "call malloc\n"
        "add $8, %rsp\n.cfi_adjust_cfa_offset -8\n"
        "ret\n.cfi_endproc\n.size odd_malloc, .-odd_malloc\n"
        ".globl odd_free\n.type odd_free, @function\n.p2align 4\n"
        "odd_free:\n.cfi_startproc\n"
        "mov %rdi, %rsi\n"
        "xor %edx, %edx\n"
        "mov %rsi, %rdi\n"
        "jmp free\n.cfi_endproc\n.size odd_free, .-odd_free\n");
#endif

NOINLINE static void usual(void) {
    char *p = malloc(100); /* @usual */
    KEEP(p);
    fill(p, 100, 5);
    p = realloc(p, 200);
    check(p, 100, 5);
    free(p);
}

NOINLINE static void odd(void) {
    char *p = odd_malloc(50); /* @odd */
    KEEP(p);
    fill(p, 50, 6);
    check(p, 50, 6);
    odd_free(p);
}

int main(void) {
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "where")) {
            say("done %lx %lx %lx %lx\n", (long)malloc, (long)free, (long)odd_malloc, (long)odd_free);
        } else if (is(line, "go")) {
            for (int i = 0; i < 100; i++) {
                usual();
                odd();
            }
            say("done\n");
        }
    }
}
