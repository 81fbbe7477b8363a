/* quiet_alloc changes nothing but the register of its result (and flags), which gcc may rely on within a file;
 * call_quiet keeps values from `before` in all other registers that calls need not preserve, and stores in `after`
 * what they are after the call. Both are words of 4 bytes. */
#include <stdint.h>
#include <string.h>

extern "C" void *quiet_alloc(size_t);
extern "C" void call_quiet(uint32_t *before, uint32_t *after, long misaligned);

#if defined __x86_64__
__asm__(".text\n.globl quiet_alloc\n.type quiet_alloc,@function\n.p2align 4\nquiet_alloc:\n"
        "lea arena_at(%rip), %rax\n"
        "mov (%rax), %rax\n"
        "nopl 0(%rax)\n"
        "ret\n.size quiet_alloc, .-quiet_alloc\n"
        ".p2align 4\ncall_quiet:\n"
        "push %rbp\nmov %rsp, %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "push %rsi\n"
        "sub %rdx, %rsp\n"
        "movups 128(%rdi), %xmm0\nmovups 144(%rdi), %xmm1\nmovups 160(%rdi), %xmm2\nmovups 176(%rdi), %xmm3\n"
        "movups 192(%rdi), %xmm4\nmovups 208(%rdi), %xmm5\nmovups 224(%rdi), %xmm6\nmovups 240(%rdi), %xmm7\n"
        "movups 256(%rdi), %xmm8\nmovups 272(%rdi), %xmm9\nmovups 288(%rdi), %xmm10\nmovups 304(%rdi), %xmm11\n"
        "movups 320(%rdi), %xmm12\nmovups 336(%rdi), %xmm13\nmovups 352(%rdi), %xmm14\nmovups 368(%rdi), %xmm15\n"
        "mov 8(%rdi), %rbx\nmov 16(%rdi), %rcx\nmov 24(%rdi), %rdx\nmov 32(%rdi), %rsi\n"
        "mov 48(%rdi), %r8\nmov 56(%rdi), %r9\nmov 64(%rdi), %r10\nmov 72(%rdi), %r11\n"
        "mov 80(%rdi), %r12\nmov 88(%rdi), %r13\nmov 96(%rdi), %r14\nmov 104(%rdi), %r15\n"
        "mov 40(%rdi), %rdi\n"
        "call quiet_alloc\n"
        "mov -48(%rbp), %rax\n"
        "mov %rbx, 8(%rax)\nmov %rcx, 16(%rax)\nmov %rdx, 24(%rax)\nmov %rsi, 32(%rax)\nmov %rdi, 40(%rax)\n"
        "mov %r8, 48(%rax)\nmov %r9, 56(%rax)\nmov %r10, 64(%rax)\nmov %r11, 72(%rax)\n"
        "mov %r12, 80(%rax)\nmov %r13, 88(%rax)\nmov %r14, 96(%rax)\nmov %r15, 104(%rax)\n"
        "movups %xmm0, 128(%rax)\nmovups %xmm1, 144(%rax)\nmovups %xmm2, 160(%rax)\nmovups %xmm3, 176(%rax)\n"
        "movups %xmm4, 192(%rax)\nmovups %xmm5, 208(%rax)\nmovups %xmm6, 224(%rax)\nmovups %xmm7, 240(%rax)\n"
        "movups %xmm8, 256(%rax)\nmovups %xmm9, 272(%rax)\nmovups %xmm10, 288(%rax)\nmovups %xmm11, 304(%rax)\n"
        "movups %xmm12, 320(%rax)\nmovups %xmm13, 336(%rax)\nmovups %xmm14, 352(%rax)\nmovups %xmm15, 368(%rax)\n"
        "lea -40(%rbp), %rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#define QUIET_WORDS 96
static void quiet_prepare(uint32_t *before) {
    before[10] = 40; /* the size */
    before[11] = 0;
}
/* Results, stack and frame pointer, padding may change. */
static int quiet_is_free(int i) { return i < 2 || (i >= 28 && i < 32); }

#elif defined __aarch64__
#define QUIET_PAIRS(insn, base) \
    insn " q0, q1, [" base ", #256]\n" insn " q2, q3, [" base ", #288]\n" insn " q4, q5, [" base ", #320]\n" \
    insn " q6, q7, [" base ", #352]\n" insn " q8, q9, [" base ", #384]\n" insn " q10, q11, [" base ", #416]\n" \
    insn " q12, q13, [" base ", #448]\n" insn " q14, q15, [" base ", #480]\n" insn " q16, q17, [" base ", #512]\n" \
    insn " q18, q19, [" base ", #544]\n" insn " q20, q21, [" base ", #576]\n" insn " q22, q23, [" base ", #608]\n" \
    insn " q24, q25, [" base ", #640]\n" insn " q26, q27, [" base ", #672]\n" insn " q28, q29, [" base ", #704]\n" \
    insn " q30, q31, [" base ", #736]\n" insn " x2, x3, [" base ", #16]\n" insn " x4, x5, [" base ", #32]\n" \
    insn " x6, x7, [" base ", #48]\n" insn " x8, x9, [" base ", #64]\n" insn " x10, x11, [" base ", #80]\n" \
    insn " x12, x13, [" base ", #96]\n" insn " x14, x15, [" base ", #112]\n" insn " x18, x19, [" base ", #144]\n" \
    insn " x20, x21, [" base ", #160]\n" insn " x22, x23, [" base ", #176]\n" insn " x24, x25, [" base ", #192]\n" \
    insn " x26, x27, [" base ", #208]\n"
#define QUIET_SAVED(insn) \
    insn " x19, x20, [sp, #16]\n" insn " x21, x22, [sp, #32]\n" insn " x23, x24, [sp, #48]\n" \
    insn " x25, x26, [sp, #64]\n" insn " x27, x28, [sp, #80]\n" insn " d8, d9, [sp, #96]\n" \
    insn " d10, d11, [sp, #112]\n" insn " d12, d13, [sp, #128]\n" insn " d14, d15, [sp, #144]\n"
__asm__(".text\n.globl quiet_alloc\n.type quiet_alloc,%function\n.p2align 4\nquiet_alloc:\n"
        "adrp x0, arena_at\nldr x0, [x0, :lo12:arena_at]\nnop\nret\n.size quiet_alloc, .-quiet_alloc\n"
        ".p2align 4\n.globl call_quiet\n.type call_quiet,%function\ncall_quiet:\n.cfi_startproc\n"
        "stp x29, x30, [sp, #-176]!\n.cfi_def_cfa_offset 176\n.cfi_offset 29, -176\n.cfi_offset 30, -168\n"
        "mov x29, sp\n" QUIET_SAVED("stp") "str x1, [sp, #160]\n"
        "ldr x28, [x0, #224]\nldr x1, [x0, #232]\nmsr nzcv, x1\n" QUIET_PAIRS("ldp", "x0")
        "ldp x0, x1, [x0]\n"
        "bl quiet_alloc\n"
        "ldr x16, [sp, #160]\nstp x0, x1, [x16]\nmrs x17, nzcv\nstp x28, x17, [x16, #224]\n" QUIET_PAIRS("stp", "x16")
        QUIET_SAVED("ldp") "ldp x29, x30, [sp], #176\nret\n.cfi_endproc\n.size call_quiet, .-call_quiet\n");
#define QUIET_WORDS 192
static void quiet_prepare(uint32_t *before) {
    before[0] = 40; /* the size */
    before[1] = 0;
    before[58] &= 0xf0000000; /* the flags */
    before[59] = 0;
}
/* The result, x16 and x17 (a linker's veneer may change them), padding. */
static int quiet_is_free(int i) { return i < 2 || (i >= 32 && i < 36) || (i >= 60 && i < 64); }

#elif defined __arm__
__asm__(".text\n.arm\n.fpu neon\n.globl quiet_alloc\n.type quiet_alloc,%function\n.p2align 4\nquiet_alloc:\n"
        "ldr r0, 1f\n0: add r0, pc, r0\nldr r0, [r0]\nbx lr\n1: .word arena_at - (0b + 8)\n"
        ".size quiet_alloc, .-quiet_alloc\n"
        ".p2align 4\n.globl call_quiet\n.type call_quiet,%function\ncall_quiet:\n.fnstart\n"
        "push {r4-r11, lr}\n.save {r4-r11, lr}\nsub sp, sp, #4\n.pad #4\nvpush {d8-d15}\n.vsave {d8-d15}\n"
        "push {r1, r2}\n.pad #8\n"
        "add r12, r0, #64\nvldmia r12!, {d0-d15}\nvldmia r12, {d16-d31}\nldmia r0, {r0-r11}\n"
        "bl quiet_alloc\n"
        "ldr r12, [sp]\nstmia r12, {r0-r11}\nadd r12, r12, #64\nvstmia r12!, {d0-d15}\nvstmia r12, {d16-d31}\n"
        "add sp, sp, #8\nvpop {d8-d15}\nadd sp, sp, #4\npop {r4-r11, pc}\n.fnend\n.size call_quiet, .-call_quiet\n");
#define QUIET_WORDS 80
static void quiet_prepare(uint32_t *before) { before[0] = 40; }
/* The result, r12 (a linker's veneer may change it, and the flags), padding. */
static int quiet_is_free(int i) { return i < 1 || (i >= 12 && i < 16); }

#elif defined __mips64
#define QUIET_G(insn, n, base) insn " $" #n ", 8*" #n "(" base ")\n"
#define QUIET_F(insn, n, base) insn " $f" #n ", 272+8*" #n "(" base ")\n"
#define QUIET_GENERAL(insn, b) \
    QUIET_G(insn, 2, b) QUIET_G(insn, 3, b) QUIET_G(insn, 5, b) QUIET_G(insn, 6, b) QUIET_G(insn, 7, b) \
    QUIET_G(insn, 8, b) QUIET_G(insn, 9, b) QUIET_G(insn, 10, b) QUIET_G(insn, 11, b) QUIET_G(insn, 12, b) \
    QUIET_G(insn, 13, b) QUIET_G(insn, 14, b) QUIET_G(insn, 15, b) QUIET_G(insn, 16, b) QUIET_G(insn, 17, b) \
    QUIET_G(insn, 18, b) QUIET_G(insn, 19, b) QUIET_G(insn, 20, b) QUIET_G(insn, 21, b) QUIET_G(insn, 22, b) \
    QUIET_G(insn, 23, b) QUIET_G(insn, 24, b) QUIET_G(insn, 25, b) QUIET_G(insn, 28, b) QUIET_G(insn, 30, b)
#define QUIET_FLOATING(insn, b) \
    QUIET_F(insn, 0, b) QUIET_F(insn, 1, b) QUIET_F(insn, 2, b) QUIET_F(insn, 3, b) QUIET_F(insn, 4, b) \
    QUIET_F(insn, 5, b) QUIET_F(insn, 6, b) QUIET_F(insn, 7, b) QUIET_F(insn, 8, b) QUIET_F(insn, 9, b) \
    QUIET_F(insn, 10, b) QUIET_F(insn, 11, b) QUIET_F(insn, 12, b) QUIET_F(insn, 13, b) QUIET_F(insn, 14, b) \
    QUIET_F(insn, 15, b) QUIET_F(insn, 16, b) QUIET_F(insn, 17, b) QUIET_F(insn, 18, b) QUIET_F(insn, 19, b) \
    QUIET_F(insn, 20, b) QUIET_F(insn, 21, b) QUIET_F(insn, 22, b) QUIET_F(insn, 23, b) QUIET_F(insn, 24, b) \
    QUIET_F(insn, 25, b) QUIET_F(insn, 26, b) QUIET_F(insn, 27, b) QUIET_F(insn, 28, b) QUIET_F(insn, 29, b) \
    QUIET_F(insn, 30, b) QUIET_F(insn, 31, b)
#define QUIET_S(insn, n, at) insn " $" #n ", " #at "($29)\n"
#define QUIET_SAVED(insn, f) \
    QUIET_S(insn, 16, 0) QUIET_S(insn, 17, 8) QUIET_S(insn, 18, 16) QUIET_S(insn, 19, 24) QUIET_S(insn, 20, 32) \
    QUIET_S(insn, 21, 40) QUIET_S(insn, 22, 48) QUIET_S(insn, 23, 56) QUIET_S(insn, 28, 64) QUIET_S(insn, 30, 72) \
    QUIET_S(f, f24, 80) QUIET_S(f, f25, 88) QUIET_S(f, f26, 96) QUIET_S(f, f27, 104) QUIET_S(f, f28, 112) \
    QUIET_S(f, f29, 120) QUIET_S(f, f30, 128) QUIET_S(f, f31, 136)
__asm__(".text\n.set push\n.set noreorder\n.set noat\n"
        ".globl quiet_alloc\n.type quiet_alloc,@function\n.p2align 4\nquiet_alloc:\n"
        "dsll $2, $4, 16\nnop\nnop\nnop\njr $31\nnop\n.size quiet_alloc, .-quiet_alloc\n"
        ".p2align 4\n.globl call_quiet\n.type call_quiet,@function\ncall_quiet:\n.cfi_startproc\n"
        "daddiu $29, $29, -176\n.cfi_def_cfa_offset 176\nsd $31, 168($29)\n.cfi_offset 31, -8\n"
        "sd $5, 160($29)\n" QUIET_SAVED("sd", "sdc1")
        "ld $1, 256($4)\nmthi $1\nld $1, 264($4)\nmtlo $1\n" QUIET_FLOATING("ldc1", "$4") QUIET_GENERAL("ld", "$4")
        "ld $4, 32($4)\nbal quiet_alloc\nnop\n"
        "ld $1, 160($29)\nsd $4, 32($1)\n" QUIET_FLOATING("sdc1", "$1") QUIET_GENERAL("sd", "$1")
        "mfhi $2\nsd $2, 256($1)\nmflo $2\nsd $2, 264($1)\n" QUIET_SAVED("ld", "ldc1")
        "ld $31, 168($29)\njr $31\ndaddiu $29, $29, 176\n.cfi_endproc\n.size call_quiet, .-call_quiet\n.set pop\n");
#define QUIET_WORDS 132
static void quiet_prepare(uint32_t *before) {
    uint64_t size = 40;
    memcpy(before + 8, &size, sizeof size);
}
/* $0, $at and the result; the kernel's, the stack pointer; the return address. */
static int quiet_is_free(int i) { return i < 6 || (i >= 52 && i < 56) || i == 58 || i == 59 || i == 62 || i == 63; }
#else
#error "which registers does this architecture have?"
#endif
