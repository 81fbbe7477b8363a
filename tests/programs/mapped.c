/* Makes each call that changes mappings or the allocator's settings, and says with which arguments. */
#include "common.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

static size_t page;

static char answer[1000];
static size_t length;

/* Adds a pair to the answer. */
static void note(const char *name, const void *value) {
    unsigned long long number = (unsigned long long)(uintptr_t)value;
    length += (size_t)snprintf(answer + length, sizeof answer - length, " %s=%llu", name, number);
}

static void *checked(void *p) {
    if (p == MAP_FAILED) fail("a call that maps memory");
    return p;
}

static void must(int failed) {
    if (failed) fail("a call that changes mappings");
}

static void regions(void) {
    char *a = checked(mmap(NULL, 3 * page, RW, ANON, -1, 0)); /* @anonymous */
    note("anonymous", a);
    memset(a, 1, 3 * page);
    must(mprotect(a + page, page, PROT_READ)); /* @mprotect */
    must(madvise(a, page, MADV_DONTNEED)); /* @madvise */
    must(mprotect(a + page, page, RW));
    char *b = checked(mremap(a, 3 * page, 64 * page, MREMAP_MAYMOVE)); /* @mremap */
    note("grown", b);
    char *place = checked(mmap(NULL, 64 * page, PROT_NONE, ANON | MAP_NORESERVE, -1, 0));
    note("place", place);
    char *moved = checked(mremap(b, 64 * page, 64 * page, MREMAP_MAYMOVE | MREMAP_FIXED, place));
    note("moved", moved);
    /* A kernel without names of mappings answers with an error. */
    prctl(PR_SET_VMA, 0, moved, 64 * page, "a name of my own");
    must(munmap(moved + page, page)); /* @munmap */
    must(munmap(moved, 64 * page));
}

static void files(const char *path) {
    int fd = open(path, O_RDONLY);
    must(fd < 0);
    char *f = checked(mmap(NULL, 2 * page, PROT_READ, MAP_PRIVATE, fd, (off_t)page)); /* @file */
    note("file", f);
    note("fd", (void *)(intptr_t)fd);
    must(close(fd));
    int memory = memfd_create("of my own", 0);
    must(memory < 0 || ftruncate(memory, (off_t)(4 * page)));
    note("memfd", checked(mmap(NULL, 4 * page, RW, MAP_SHARED, memory, 0)));
}

static void failing(void) {
    must(munmap((void *)1, page) == 0 || errno != EINVAL);
    must(mmap(NULL, 0, RW, ANON, -1, 0) != MAP_FAILED || errno != EINVAL);
    must(mprotect((void *)page, page, RW) == 0 || errno != ENOMEM);
}

static void breaks(void) {
    char *at = sbrk(0);
    note("break", at);
    checked(sbrk((intptr_t)(4 * page))); /* @sbrk */
    must(brk(at + 2 * page)); /* @brk */
    checked(sbrk(-(intptr_t)(2 * page)));
}

static void shared(void) {
    int id = shmget(IPC_PRIVATE, 3 * page, IPC_CREAT | 0600);
    must(id < 0);
    note("shmid", (void *)(intptr_t)id);
    char *s = checked(shmat(id, NULL, 0)); /* @shmat */
    note("segment", s);
    must(shmctl(id, IPC_RMID, NULL));
    must(shmdt(s)); /* @shmdt */
}

static void allocator(void) {
    must(mallopt(M_MMAP_THRESHOLD, 1 << 20) != 1); /* @mallopt */
    char *big = malloc(64 << 20); /* @block */
    KEEP(big);
    note("block", big);
    free(big);
    note("trimmed", (void *)(intptr_t)malloc_trim(12345)); /* @malloc_trim */
}

static void *idle(void *none) {
    return none;
}

static void thread(void) {
    pthread_attr_t attr;
    pthread_t t;
    must(pthread_attr_init(&attr) || pthread_attr_setstacksize(&attr, 321 * page));
    must(pthread_create(&t, &attr, idle, NULL)); /* @pthread_create */
    must(pthread_join(t, NULL));
}

static void *hammer(void *none) {
    for (int i = 0; i < 10000; i++) {
        char *p = checked(mmap(NULL, page << (i & 3), RW, ANON, -1, 0)); /* @hammer_mmap */
        *p = 1;
        must(munmap(p, page << (i & 3))); /* @hammer_munmap */
    }
    return none;
}

static void threads(void) {
    pthread_t all[8];
    for (int i = 0; i < 8; i++) must(pthread_create(&all[i], NULL, hammer, NULL));
    for (int i = 0; i < 8; i++) must(pthread_join(all[i], NULL));
}

static void many(void) {
    /* Neighbours with other rights, which the kernel does not merge. */
    for (int i = 0; i < 60000; i++) {
        void *p = mmap(NULL, page, i & 1 ? PROT_READ : RW, ANON, -1, 0); /* @many */
        if (p == MAP_FAILED) fail("one of many mappings");
    }
}

int main(int argc, char **argv) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = malloc(100);
    KEEP(p);
    say("ready page=%zu\n", page);
    for (;;) {
        const char *line = command();
        length = 0;
        answer[0] = 0;
        if (is(line, "regions")) regions();
        if (is(line, "files")) files(argv[0]);
        if (is(line, "failing")) failing();
        if (is(line, "breaks")) breaks();
        if (is(line, "shared")) shared();
        if (is(line, "allocator")) allocator();
        if (is(line, "thread")) thread();
        if (is(line, "threads")) threads();
        if (is(line, "many")) many();
        if (is(line, "dlopen")) must(argc < 2 || !dlopen(argv[1], RTLD_NOW));
        say("done%s\n", answer);
    }
}
