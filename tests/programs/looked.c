/* Maps memory by system calls of its own, which no hook sees. It prints what it has mapped, so that each byte can be
 * checked. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#ifdef SYS_mmap2
enum { MMAP = SYS_mmap2 };
#else
enum { MMAP = SYS_mmap };
#endif

enum { MIB = 1 << 20, THREADS = 8 };

static size_t page;
static char *far_away;

static void *map(void *at, size_t len, int prot, int flags, int fd) {
    void *p = (void *)syscall(MMAP, at, len, prot, flags, fd, 0);
    if (p == MAP_FAILED) fail("mmap: %s", strerror(errno));
    return p;
}
static void unmap(void *at, size_t len) {
    if (syscall(SYS_munmap, at, len)) fail("munmap: %s", strerror(errno));
}
static void touch(char *at, size_t len) {
    for (size_t i = 0; i < len; i += page) *(volatile char *)(at + i) = 1;
}

static char *kept[64];
static volatile int done;

/* Fills an arena and a stack of its own, and stays. */
static void *stay(void *arg) {
    volatile char stack[256 << 10];
    for (size_t i = 0; i < sizeof stack; i += page) stack[i] = 1;
    for (int i = 0; i < 64; i++) memset(kept[i] = malloc(50000), 1, 50000);
    done = 1;
    while (1) pause();
    return arg;
}

static void *churn(void *arg) {
    for (int i = 0; i < *(int *)arg; i++) {
        char *p = map(0, 64 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        touch(p, page);
        syscall(SYS_munmap, p + 16 * page, 8 * page);
        unmap(p, 64 * page);
    }
    return arg;
}

int main(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    far_away = (char *)(sizeof(void *) == 8 ? (uintptr_t)1 << 37 : (uintptr_t)0x60000000);
    int fixed = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
    char *anonymous = 0, *shared = 0, *growing = 0;
    size_t grown = 0;
    say("ready\n");
    for (;;) {
        const char *c = command();
        int n;
        if (!strcmp(c, "map")) {
            anonymous = map(far_away, 4 * MIB, PROT_READ | PROT_WRITE, fixed, -1);
            madvise(anonymous, 4 * MIB, MADV_NOHUGEPAGE);
            touch(anonymous, MIB);
            shared = map(far_away + 16 * MIB, MIB, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS, -1);
            touch(shared, MIB / 2);
        } else if (!strcmp(c, "cut")) {
            unmap(anonymous + 2 * MIB, MIB);
        } else if (!strcmp(c, "replace")) {
            int fd = open("/proc/self/exe", O_RDONLY);
            map(anonymous + MIB, page, PROT_READ, MAP_FIXED | MAP_PRIVATE, fd);
            close(fd);
        } else if (!strcmp(c, "heap")) {
            /* A block that malloc maps on its own; blocks in an arena that it maps; a stack. */
            pthread_t t;
            anonymous = malloc(8 * MIB);
            memset(anonymous, 1, 8 * MIB);
            if (pthread_create(&t, 0, stay, 0)) fail("pthread_create");
            while (!done) usleep(1000);
        } else if (sscanf(c, "grow %d", &n) == 1) {
            if (!growing) growing = mmap(0, 256 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (!grown) madvise(growing, 256 * MIB, MADV_NOHUGEPAGE);
            touch(growing + grown, (size_t)n * MIB);
            grown += (size_t)n * MIB;
            anonymous = growing;
        } else if (sscanf(c, "many %d", &n) == 1) {
            for (int i = 0; i < n; i++) {
                map(far_away + 32 * MIB + i * page, page, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, fixed, -1);
            }
        } else if (sscanf(c, "churn %d", &n) == 1) {
            pthread_t t[THREADS];
            for (int i = 0; i < THREADS; i++) {
                if (pthread_create(&t[i], 0, churn, &n)) fail("pthread_create");
            }
            for (int i = 0; i < THREADS; i++) pthread_join(t[i], 0);
        }
        say("done %zu %zu\n", (size_t)anonymous, (size_t)shared);
    }
}
