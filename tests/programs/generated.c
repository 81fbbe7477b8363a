/* Stacks through generated code, which no unwind table describes. "go" allocates 5,001 bytes below three frames of
 * such code, which have a frame record (except on 32-bit ARM and MIPS64, where there is none) below other words, so
 * that their caller's stack pointer does not follow from it. */
#include "common.h"
#include <sys/mman.h>

/* The argument of a generated function: it calls f(arg). */
struct call {
    void (*f)(void *arg);
    void *arg;
};

#if defined(__x86_64__)
static const uint8_t CODE[] = {
    0x55,                   /* push rbp */
    0x48, 0x89, 0xe5,       /* mov rbp, rsp */
    0x48, 0x83, 0xec, 0x40, /* sub rsp, 64 */
    0x48, 0x8b, 0x07,       /* mov rax, [rdi] */
    0x48, 0x8b, 0x7f, 0x08, /* mov rdi, [rdi+8] */
    0xff, 0xd0,             /* call rax */
    0xc9,                   /* leave */
    0xc3,                   /* ret */
};
#elif defined(__aarch64__)
static const uint32_t CODE[] = {
    0xa9bc7bfd, /* stp x29, x30, [sp, #-64]! */
    0x910003fd, /* mov x29, sp */
    0xa9400002, /* ldp x2, x0, [x0] */
    0xd63f0040, /* blr x2 */
    0x10000050, /* adr x16, .+8 */
    0xd61f0200, /* br x16: where that leads is not to be seen */
    0xa8c47bfd, /* ldp x29, x30, [sp], #64 */
    0xd65f03c0, /* ret */
};
#elif defined(__arm__)
#define THUMB 1
static const uint16_t CODE[] = {
    0xb510, /* push {r4, lr} */
    0x6802, /* ldr r2, [r0] */
    0x6840, /* ldr r0, [r0, #4] */
    0x4790, /* blx r2 */
    0xbd10, /* pop {r4, pc} */
};
#elif defined(__mips64)
static const uint32_t CODE[] = {
    0x67bdffc0, /* daddiu sp, sp, -64 */
    0xffbf0038, /* sd ra, 56(sp) */
    0xdc990000, /* ld t9, 0(a0) */
    0xdc840008, /* ld a0, 8(a0) */
    0x0320f809, /* jalr t9 */
    0x00000000, /* nop */
    0xdfbf0038, /* ld ra, 56(sp) */
    0x03e00008, /* jr ra */
    0x67bd0040, /* daddiu sp, sp, 64 */
};
#endif
#ifndef THUMB
#define THUMB 0
#endif

NOINLINE static void inner(void *arg) {
    (void)arg;
    void *p = malloc(5001); /* @inner */
    KEEP(p);
}

NOINLINE static int middle(struct call *c, int n) {
    volatile int room[37];
    for (int i = 0; i < 37; i++) room[i] = n + i;
    c->f(c->arg);
    return room[n];
}

int main(void) {
    char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) fail("mmap: %s", strerror(errno));
    memcpy(code, CODE, sizeof CODE);
    if (mprotect(code, 4096, PROT_READ | PROT_EXEC)) fail("mprotect: %s", strerror(errno));
    __builtin___clear_cache(code, code + sizeof CODE);
    void (*generated)(void *) = (void (*)(void *))(uintptr_t)(code + THUMB);
    struct call last = {inner, NULL}, second = {generated, &last}, first = {generated, &second};
    struct call start = {generated, &first};
    say("ready\n");
    for (;;) {
        if (!is(command(), "go")) continue;
        for (int i = 0; i < 100; i++) {
            if (middle(&start, i % 37) != i % 37 * 2) fail("a result");
        }
        say("done\n");
    }
}
