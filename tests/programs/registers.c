/* Checks what a call of an allocator function must preserve: the callee-saved registers, the stack
 * pointer, the modes of the floating-point units (on AMD64 also the direction flag and the x87 stack), and
 * errno. "calls" calls all functions, and C++'s operators, on a stack that is new each time, and on one
 * that is always the same. "spin" computes in all vector registers, which a stop at any instant must
 * preserve. */
#include "common.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

uint64_t call_arguments[4], call_result;
void *call_target;
static unsigned char pattern[32 * 64], got[32 * 64];

/* Calls call_target(call_arguments) with known values in all registers that it must preserve. */
void checked_call(void);

#if defined __x86_64__
#include <cpuid.h>
struct state {
    uint64_t rbx, rbp, r12, r13, r14, r15, rsp, flags;
    uint32_t mxcsr;
    uint16_t control, status, pad;
};
struct state before, after;
uint64_t saved_registers[6];
__asm__(".text\n.globl checked_call\n.type checked_call,@function\nchecked_call:\n"
        ".cfi_startproc\n"
        "push %rbp\n.cfi_adjust_cfa_offset 8\n"
        "lea saved_registers(%rip), %rax\n"
        "mov %rbx, (%rax)\nmov %rbp, 8(%rax)\nmov %r12, 16(%rax)\nmov %r13, 24(%rax)\n"
        "mov %r14, 32(%rax)\nmov %r15, 40(%rax)\n"
        "mov $0x1111111122222222, %rbx\nmov $0x3333333344444444, %rbp\n"
        "mov $0x5555555566666666, %r12\nmov $0x7777777788888888, %r13\n"
        "mov $0x99999999aaaaaaaa, %r14\nmov $0xbbbbbbbbcccccccc, %r15\n"
        "lea before(%rip), %rax\ncall store_state\n"
        "mov call_arguments(%rip), %rdi\nmov 8+call_arguments(%rip), %rsi\n"
        "mov 16+call_arguments(%rip), %rdx\n"
        "call *call_target(%rip)\n"
        "mov %rax, call_result(%rip)\n"
        "lea after(%rip), %rax\ncall store_state\n"
        "lea saved_registers(%rip), %rax\n"
        "mov (%rax), %rbx\nmov 8(%rax), %rbp\nmov 16(%rax), %r12\nmov 24(%rax), %r13\n"
        "mov 32(%rax), %r14\nmov 40(%rax), %r15\n"
        "pop %rbp\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc\n"
        "store_state:\n"
        "mov %rbx, (%rax)\nmov %rbp, 8(%rax)\nmov %r12, 16(%rax)\nmov %r13, 24(%rax)\n"
        "mov %r14, 32(%rax)\nmov %r15, 40(%rax)\nmov %rsp, 48(%rax)\n"
        "pushfq\npop %rcx\nand $0x400, %rcx\nmov %rcx, 56(%rax)\n"
        "stmxcsr 64(%rax)\nfnstcw 68(%rax)\nfnstsw 70(%rax)\nret\n");

/* Round up, flush to zero, x87 in single precision, a number on its stack. */
static void checked_call_in_other_modes(const char *name) {
    uint32_t mxcsr_before, mxcsr = 0xdf80;
    uint16_t control_before, control = 0x0c7f;
    double seven = 7;
    __asm__ volatile("stmxcsr %0\nldmxcsr %2\nfnstcw %1\nfldcw %3\nfldl %4"
                     : "=m"(mxcsr_before), "=m"(control_before)
                     : "m"(mxcsr), "m"(control), "m"(seven));
    checked_call();
    __asm__ volatile("fstpl %0\nfldcw %1\nldmxcsr %2"
                     : "=m"(seven) : "m"(control_before), "m"(mxcsr_before));
    if (seven != 7) fail("%s does not keep the x87 stack", name);
}

/* Sets all registers, spins for about a millisecond, and compares them. */
#define LOAD(n, size, insn, reg) insn " " #n "*" size "(%0), %%" reg #n "\n"
#define STORE(n, size, insn, reg) insn " %%" reg #n ", " #n "*" size "(%1)\n"
#define SIXTEEN(f, ...) f(0, __VA_ARGS__) f(1, __VA_ARGS__) f(2, __VA_ARGS__) f(3, __VA_ARGS__) \
    f(4, __VA_ARGS__) f(5, __VA_ARGS__) f(6, __VA_ARGS__) f(7, __VA_ARGS__) f(8, __VA_ARGS__) \
    f(9, __VA_ARGS__) f(10, __VA_ARGS__) f(11, __VA_ARGS__) f(12, __VA_ARGS__) \
    f(13, __VA_ARGS__) f(14, __VA_ARGS__) f(15, __VA_ARGS__)
#define HIGHER(f, ...) f(16, __VA_ARGS__) f(17, __VA_ARGS__) f(18, __VA_ARGS__) \
    f(19, __VA_ARGS__) f(20, __VA_ARGS__) f(21, __VA_ARGS__) f(22, __VA_ARGS__) \
    f(23, __VA_ARGS__) f(24, __VA_ARGS__) f(25, __VA_ARGS__) f(26, __VA_ARGS__) \
    f(27, __VA_ARGS__) f(28, __VA_ARGS__) f(29, __VA_ARGS__) f(30, __VA_ARGS__) f(31, __VA_ARGS__)
#define SPIN "mov $400000, %%rcx\nstd\nstc\n1: lea -1(%%rcx), %%rcx\njrcxz 2f\njmp 1b\n2:\n" \
    "pushfq\ncld\npop %%rcx\nand $0x401, %%rcx\nmov %%rcx, %2\n"

static size_t spin_sse(uint64_t *flags) {
    __asm__ volatile(SIXTEEN(LOAD, "16", "movups", "xmm") SPIN SIXTEEN(STORE, "16", "movups", "xmm")
                     : : "r"(pattern), "r"(got), "m"(*flags) : "rcx", "cc", "memory");
    return 16 * 16;
}
__attribute__((target("avx"))) static size_t spin_avx(uint64_t *flags) {
    __asm__ volatile(SIXTEEN(LOAD, "32", "vmovups", "ymm") SPIN SIXTEEN(STORE, "32", "vmovups", "ymm")
                     "vzeroupper\n" : : "r"(pattern), "r"(got), "m"(*flags) : "rcx", "cc", "memory");
    return 16 * 32;
}
__attribute__((target("avx512f"))) static size_t spin_avx512(uint64_t *flags) {
    __asm__ volatile("kmovw (%0), %%k1\nkmovw 2(%0), %%k7\n"
                     SIXTEEN(LOAD, "64", "vmovups", "zmm") HIGHER(LOAD, "64", "vmovups", "zmm") SPIN
                     SIXTEEN(STORE, "64", "vmovups", "zmm") HIGHER(STORE, "64", "vmovups", "zmm")
                     "kmovw %%k1, (%1)\nkmovw %%k7, 2(%1)\nvzeroupper\n"
                     : : "r"(pattern), "r"(got), "m"(*flags) : "rcx", "cc", "memory");
    return 32 * 64;
}
#define FLAGS 0x401ul
static const char *choose_spin(size_t (**spin)(uint64_t *)) {
    __builtin_cpu_init();
    const char *what = "sse";
    *spin = spin_sse;
    if (__builtin_cpu_supports("avx")) *spin = spin_avx, what = "avx";
    if (__builtin_cpu_supports("avx512f")) *spin = spin_avx512, what = "avx512";
    return what;
}

#elif defined __aarch64__
struct state {
    uint64_t x19_to_x28[10], x29, sp, d8_to_d15[8], fpcr;
};
struct state before, after;

__asm__(".text\n.globl checked_call\n.type checked_call,%function\nchecked_call:\n"
        ".cfi_startproc\n"
        "stp x29, x30, [sp, #-176]!\n.cfi_def_cfa_offset 176\n"
        ".cfi_offset 29, -176\n.cfi_offset 30, -168\n"
        "stp x19, x20, [sp, #16]\nstp x21, x22, [sp, #32]\nstp x23, x24, [sp, #48]\n"
        "stp x25, x26, [sp, #64]\nstp x27, x28, [sp, #80]\nstp d8, d9, [sp, #96]\n"
        "stp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "ldr x9, =0x1111111122222222\n"
        "mov x19, x9\nadd x20, x19, x9\nadd x21, x20, x9\nadd x22, x21, x9\nadd x23, x22, x9\n"
        "add x24, x23, x9\nadd x25, x24, x9\nadd x26, x25, x9\nadd x27, x26, x9\n"
        "add x28, x27, x9\nadd x29, x28, x9\n"
        "fmov d8, x19\nfmov d9, x20\nfmov d10, x21\nfmov d11, x22\n"
        "fmov d12, x23\nfmov d13, x24\nfmov d14, x25\nfmov d15, x26\n"
        "adrp x9, before\nadd x9, x9, :lo12:before\nbl store_state\n"
        "adrp x9, call_arguments\nadd x9, x9, :lo12:call_arguments\n"
        "ldp x0, x1, [x9]\nldr x2, [x9, #16]\n"
        "adrp x9, call_target\nldr x9, [x9, :lo12:call_target]\nblr x9\n"
        "adrp x9, call_result\nstr x0, [x9, :lo12:call_result]\n"
        "adrp x9, after\nadd x9, x9, :lo12:after\nbl store_state\n"
        "ldp x19, x20, [sp, #16]\nldp x21, x22, [sp, #32]\nldp x23, x24, [sp, #48]\n"
        "ldp x25, x26, [sp, #64]\nldp x27, x28, [sp, #80]\nldp d8, d9, [sp, #96]\n"
        "ldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
        "ldp x29, x30, [sp], #176\nret\n.cfi_endproc\n"
        "store_state:\n"
        "stp x19, x20, [x9]\nstp x21, x22, [x9, #16]\nstp x23, x24, [x9, #32]\n"
        "stp x25, x26, [x9, #48]\nstp x27, x28, [x9, #64]\nmov x10, sp\nstp x29, x10, [x9, #80]\n"
        "stp d8, d9, [x9, #96]\nstp d10, d11, [x9, #112]\nstp d12, d13, [x9, #128]\n"
        "stp d14, d15, [x9, #144]\nmrs x10, fpcr\nstr x10, [x9, #160]\nret\n.ltorg\n");

/* Round up, flush to zero, default NaN. */
static void checked_call_in_other_modes(const char *name) {
    (void)name;
    uint64_t old, other = 0x3400000;
    __asm__ volatile("mrs %0, fpcr\nmsr fpcr, %1" : "=&r"(old) : "r"(other));
    checked_call();
    __asm__ volatile("msr fpcr, %0" : : "r"(old));
}

/* Sets all registers, spins for about a millisecond, and compares them. */
#define PAIRS(insn, base) \
    insn " q0, q1, [" base "]\n" insn " q2, q3, [" base ", #32]\n" insn " q4, q5, [" base ", #64]\n" \
    insn " q6, q7, [" base ", #96]\n" insn " q8, q9, [" base ", #128]\n" \
    insn " q10, q11, [" base ", #160]\n" insn " q12, q13, [" base ", #192]\n" \
    insn " q14, q15, [" base ", #224]\n" insn " q16, q17, [" base ", #256]\n" \
    insn " q18, q19, [" base ", #288]\n" insn " q20, q21, [" base ", #320]\n" \
    insn " q22, q23, [" base ", #352]\n" insn " q24, q25, [" base ", #384]\n" \
    insn " q26, q27, [" base ", #416]\n" insn " q28, q29, [" base ", #448]\n" \
    insn " q30, q31, [" base ", #480]\n"
#define FLAGS 0xa0000000ul
static size_t spin_simd(uint64_t *flags) {
    uint64_t left = 400000, now = FLAGS;
    __asm__ volatile(PAIRS("ldp", "%2") "msr nzcv, %1\n1: sub %0, %0, #1\ncbnz %0, 1b\nmrs %1, nzcv\n"
                     PAIRS("stp", "%3")
                     : "+r"(left), "+r"(now) : "r"(pattern), "r"(got)
                     : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",
                       "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20",
                       "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
    *flags = now;
    return 32 * 16;
}
static const char *choose_spin(size_t (**spin)(uint64_t *)) {
    *spin = spin_simd;
    return "simd";
}
#elif defined __mips64
struct state {
    uint64_t s0_to_s7[8], gp, fp, sp, f24_to_f31[8], fcsr;
};
struct state before, after;

#define SAVED(insn, base) \
    insn " $16, 0(" base ")\n" insn " $17, 8(" base ")\n" insn " $18, 16(" base ")\n" \
    insn " $19, 24(" base ")\n" insn " $20, 32(" base ")\n" insn " $21, 40(" base ")\n" \
    insn " $22, 48(" base ")\n" insn " $23, 56(" base ")\n" insn " $28, 64(" base ")\n" \
    insn " $30, 72(" base ")\n"
#define SAVED_FP(insn, base) \
    insn " $f24, 88(" base ")\n" insn " $f25, 96(" base ")\n" insn " $f26, 104(" base ")\n" \
    insn " $f27, 112(" base ")\n" insn " $f28, 120(" base ")\n" insn " $f29, 128(" base ")\n" \
    insn " $f30, 136(" base ")\n" insn " $f31, 144(" base ")\n"
__asm__(".text\n.globl checked_call\n.type checked_call,@function\nchecked_call:\n"
        ".set push\n.set noreorder\n.cfi_startproc\n"
        "daddiu $29, $29, -176\n.cfi_def_cfa_offset 176\n"
        "sd $31, 168($29)\n.cfi_offset 31, -8\n"
        SAVED("sd", "$29") ".cfi_offset 28, -112\n.cfi_offset 30, -104\n" SAVED_FP("sdc1", "$29")
        "lui $28, %hi(%neg(%gp_rel(checked_call)))\ndaddu $28, $28, $25\n"
        "daddiu $28, $28, %lo(%neg(%gp_rel(checked_call)))\n"
        "lui $8, 0x1111\nori $8, $8, 0x2222\ndsll $9, $8, 20\ndaddu $16, $8, $9\n"
        "daddu $17, $16, $9\ndaddu $18, $17, $9\ndaddu $19, $18, $9\ndaddu $20, $19, $9\n"
        "daddu $21, $20, $9\ndaddu $22, $21, $9\ndaddu $23, $22, $9\ndaddu $30, $23, $9\n"
        "dmtc1 $16, $f24\ndmtc1 $17, $f25\ndmtc1 $18, $f26\ndmtc1 $19, $f27\n"
        "dmtc1 $20, $f28\ndmtc1 $21, $f29\ndmtc1 $22, $f30\ndmtc1 $23, $f31\n"
        "ld $8, %got_disp(before)($28)\nbal store_state\nnop\n"
        "ld $8, %got_disp(call_arguments)($28)\nld $4, 0($8)\nld $5, 8($8)\nld $6, 16($8)\n"
        "ld $25, %got_disp(call_target)($28)\nld $25, 0($25)\njalr $25\nnop\n"
        "ld $8, %got_disp(call_result)($28)\nsd $2, 0($8)\n"
        "ld $8, %got_disp(after)($28)\nbal store_state\nnop\n"
        SAVED("ld", "$29") SAVED_FP("ldc1", "$29")
        "ld $31, 168($29)\njr $31\ndaddiu $29, $29, 176\n.cfi_endproc\n"
        "store_state:\n" SAVED("sd", "$8") "sd $29, 80($8)\n" SAVED_FP("sdc1", "$8")
        "cfc1 $9, $31\nsd $9, 152($8)\njr $31\nnop\n.set pop\n");

/* Round up, flush to zero. */
static void checked_call_in_other_modes(const char *name) {
    (void)name;
    uint32_t old, other = 0x01000002;
    __asm__ volatile("cfc1 %0, $31\nctc1 %1, $31" : "=&r"(old) : "r"(other));
    checked_call();
    __asm__ volatile("ctc1 %0, $31" : : "r"(old));
}

/* Sets all registers, spins for about a millisecond, and compares them. */
#define FOUR(insn, a, b, c, d, base) \
    insn " $f" #a ", 8*" #a "(" base ")\n" insn " $f" #b ", 8*" #b "(" base ")\n" \
    insn " $f" #c ", 8*" #c "(" base ")\n" insn " $f" #d ", 8*" #d "(" base ")\n"
#define ALL(insn, base) \
    FOUR(insn, 0, 1, 2, 3, base) FOUR(insn, 4, 5, 6, 7, base) FOUR(insn, 8, 9, 10, 11, base) \
    FOUR(insn, 12, 13, 14, 15, base) FOUR(insn, 16, 17, 18, 19, base) \
    FOUR(insn, 20, 21, 22, 23, base) FOUR(insn, 24, 25, 26, 27, base) \
    FOUR(insn, 28, 29, 30, 31, base)
#define FLAGS 0xa5a55a5a12345678ul
static size_t spin_floating(uint64_t *flags) {
    uint64_t left = 100000, high = FLAGS, low = FLAGS;
    __asm__ volatile(".set push\n.set noreorder\n" ALL("ldc1", "%3")
                     "mthi %1\nmtlo %2\n1: daddiu %0, %0, -1\nbnez %0, 1b\nnop\n"
                     "mfhi %1\nmflo %2\n" ALL("sdc1", "%4") ".set pop"
                     : "+r"(left), "+r"(high), "+r"(low) : "r"(pattern), "r"(got)
                     : "memory", "hi", "lo", "$f0", "$f1", "$f2", "$f3", "$f4", "$f5", "$f6", "$f7",
                       "$f8", "$f9", "$f10", "$f11", "$f12", "$f13", "$f14", "$f15", "$f16", "$f17",
                       "$f18", "$f19", "$f20", "$f21", "$f22", "$f23", "$f24", "$f25", "$f26",
                       "$f27", "$f28", "$f29", "$f30", "$f31");
    *flags = high == low ? high : ~FLAGS;
    return 32 * 8;
}
static const char *choose_spin(size_t (**spin)(uint64_t *)) {
    *spin = spin_floating;
    return "floating";
}
#elif defined __arm__
struct state {
    uint32_t r4_to_r11[8], sp, fpscr;
    uint64_t d8_to_d15[8];
};
struct state before, after;

/* Loads the address of a symbol into r12, position-independently. */
#define AT(symbol) "ldr r12, 1f\n0: add r12, pc, r12\nb 2f\n1: .word " symbol " - (0b + 8)\n2:\n"
__asm__(".text\n.arm\n.fpu neon\n.globl checked_call\n.type checked_call,%function\nchecked_call:\n"
        ".fnstart\npush {r4-r11, lr}\n.save {r4-r11, lr}\nvpush {d8-d15}\n.vsave {d8-d15}\n"
        "sub sp, sp, #4\n.pad #4\n"
        "movw r4, #0x1111\nmovt r4, #0x1111\nadd r5, r4, r4\nadd r6, r5, r4\nadd r7, r6, r4\n"
        "add r8, r7, r4\nadd r9, r8, r4\nadd r10, r9, r4\nadd r11, r10, r4\n"
        "vmov d8, r4, r5\nvmov d9, r5, r6\nvmov d10, r6, r7\nvmov d11, r7, r8\n"
        "vmov d12, r8, r9\nvmov d13, r9, r10\nvmov d14, r10, r11\nvmov d15, r11, r4\n"
        AT("before") "bl store_state\n"
        AT("call_arguments") "ldr r0, [r12]\nldr r1, [r12, #8]\nldr r2, [r12, #16]\n"
        AT("call_target") "ldr r12, [r12]\nblx r12\n"
        AT("call_result") "mov r1, #0\nstrd r0, r1, [r12]\n"
        AT("after") "bl store_state\n"
        "add sp, sp, #4\nvpop {d8-d15}\npop {r4-r11, pc}\n.fnend\n"
        /* Without the status bits that computing changes. */
        "store_state:\nstmia r12!, {r4-r11}\nmov r2, sp\nvmrs r3, fpscr\nbic r3, r3, #0x9f\n"
        "stmia r12!, {r2, r3}\nvstmia r12, {d8-d15}\nbx lr\n");

/* Round up, flush to zero, default NaN. */
static void checked_call_in_other_modes(const char *name) {
    (void)name;
    uint32_t old, other = 0x3400000;
    __asm__ volatile("vmrs %0, fpscr\nvmsr fpscr, %1" : "=&r"(old) : "r"(other));
    checked_call();
    __asm__ volatile("vmsr fpscr, %0" : : "r"(old));
}

/* Sets all registers, spins for about a millisecond, and compares them. */
#define FLAGS 0xa0000000ul
static size_t spin_vectors(uint64_t *flags) {
    uint32_t left = 400000, now = FLAGS;
    unsigned char *from = pattern, *to = got;
    __asm__ volatile(".fpu neon\nvldmia %2!, {d0-d15}\nvldmia %2, {d16-d31}\nmsr apsr_nzcvq, %1\n"
                     "1: sub %0, %0, #1\ncbz %0, 2f\nb 1b\n2: mrs %1, apsr\n"
                     "vstmia %3!, {d0-d15}\nvstmia %3, {d16-d31}\n"
                     : "+l"(left), "+r"(now), "+r"(from), "+r"(to)
                     :
                     : "cc", "memory", "d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9",
                       "d10", "d11", "d12", "d13", "d14", "d15");
    *flags = now & 0xf8000000;
    return 32 * 8;
}
static const char *choose_spin(size_t (**spin)(uint64_t *)) {
    *spin = spin_vectors;
    return "vectors";
}
#else
#error "which registers does this architecture have?"
#endif

static uint64_t call(const char *name, void *target, uint64_t a, uint64_t b, uint64_t c) {
    call_target = target;
    call_arguments[0] = a;
    call_arguments[1] = b;
    call_arguments[2] = c;
    errno = 1234;
    checked_call_in_other_modes(name);
    if (memcmp(&before, &after, sizeof before)) fail("%s does not keep the registers", name);
    if (errno != 1234) fail("%s sets errno to %d", name, errno);
    return call_result;
}

#define CALL(f, a, b, c) call(#f, (void *)(f), (uint64_t)(uintptr_t)(a), (uint64_t)(uintptr_t)(b), (uint64_t)(uintptr_t)(c))
/* Operators of C++, each new with its delete, by their names where size_t is long and where it is int; and what they
 * take after the size or the pointer: an alignment, a size, or std::nothrow (1). */
static const struct operators {
    const char *new_, *delete_;
    uint64_t more, more_at_delete;
} operators[] = {
    {"_Znwm\0_Znwj", "_ZdlPv\0", 0, 0},
    {"_Znam\0_Znaj", "_ZdaPv\0", 0, 0},
    {"_Znwm\0_Znwj", "_ZdlPvm\0_ZdlPvj", 0, 100},
    {"_Znam\0_Znaj", "_ZdaPvm\0_ZdaPvj", 0, 100},
    {"_ZnwmSt11align_val_t\0_ZnwjSt11align_val_t", "_ZdlPvSt11align_val_t\0", 64, 64},
    {"_ZnamSt11align_val_t\0_ZnajSt11align_val_t", "_ZdaPvSt11align_val_t\0", 64, 64},
    {"_ZnwmRKSt9nothrow_t\0_ZnwjRKSt9nothrow_t", "_ZdlPvRKSt9nothrow_t\0", 1, 1},
    {"_ZnamRKSt9nothrow_t\0_ZnajRKSt9nothrow_t", "_ZdaPvRKSt9nothrow_t\0", 1, 1},
};
static void *libstdcxx;
static void *named(const char *names) {
    void *f = dlsym(libstdcxx, names);
    if (!f) f = dlsym(libstdcxx, names + strlen(names) + 1);
    if (!f) fail("no %s", names);
    return f;
}
static int calls;
static void call_operators(void) {
    uint64_t nothrow = (uint64_t)(uintptr_t)named("_ZSt7nothrow\0");
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        const struct operators *o = &operators[i];
        uint64_t a = o->more == 1 ? nothrow : o->more;
        uint64_t b = o->more_at_delete == 1 ? nothrow : o->more_at_delete;
        void *p = (void *)(uintptr_t)call(o->new_, named(o->new_), 100, a, 0);
        if (!p) fail("%s gave nothing", o->new_);
        call(o->delete_, named(o->delete_), (uint64_t)(uintptr_t)p, b, 0);
        calls += 2;
    }
}
NOINLINE static void all(int depth) {
    if (depth > 0) {
        all(depth - 1);
        KEEP(depth);
        return;
    }
    void *p = NULL, *old[12];
    old[0] = (void *)(uintptr_t)CALL(malloc, 100, 0, 0);
    old[1] = (void *)(uintptr_t)CALL(calloc, 3, 100, 0);
    old[2] = (void *)(uintptr_t)CALL(realloc, 0, 100, 0);
    old[2] = (void *)(uintptr_t)CALL(realloc, old[2], 5000, 0);
    old[3] = (void *)(uintptr_t)CALL(reallocarray, 0, 10, 10);
    if (CALL(posix_memalign, &p, 64, 100) != 0) fail("posix_memalign");
    old[4] = p;
    old[5] = (void *)(uintptr_t)CALL(aligned_alloc, 64, 128, 0);
    old[6] = (void *)(uintptr_t)CALL(memalign, 64, 100, 0);
    old[7] = (void *)(uintptr_t)CALL(valloc, 100, 0, 0);
    old[8] = (void *)(uintptr_t)CALL(pvalloc, 100, 0, 0);
    for (int i = 0; i < 9; i++) {
        if (!old[i]) fail("call %d gave nothing", i);
        CALL(free, old[i], 0, 0);
    }
    CALL(free, NULL, 0, 0);
    calls += 20;
    call_operators();
}

static atomic_int stop;
static atomic_ulong spins;
static size_t (*spin)(uint64_t *);
static void *spinning(void *nothing) {
    while (!atomic_load(&stop)) {
        uint64_t flags = 0;
        memset(got, 0, sizeof got);
        size_t n = spin(&flags);
        if (memcmp(pattern, got, n)) fail("the vector registers have changed");
        if (flags != FLAGS) fail("the flags have changed to %lx", (unsigned long)flags);
        atomic_fetch_add(&spins, 1);
    }
    return nothing;
}

int main(void) {
    const char *what = choose_spin(&spin);
    fill(pattern, sizeof pattern, 77);
    if (!(libstdcxx = dlopen("libstdc++.so.6", RTLD_NOW))) fail("%s", dlerror());
    pthread_t id;
    if (pthread_create(&id, NULL, spinning, NULL)) fail("pthread_create");
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (is(word, "calls")) {
            calls = 0;
            for (int i = 0; i < 200; i++) all(i % 2 ? 5 : i / 2);
            say("done %d calls\n", calls);
        }
        if (is(word, "spins")) say("done %lu %s\n", atomic_load(&spins), what);
        if (is(word, "stop")) {
            atomic_store(&stop, 1);
            pthread_join(id, NULL);
            say("done OK\n");
        }
    }
}
