/* Maps and unmaps: answers "DEPTH PAIRS" with "done" and the CPU ns of the thread for each pair of mmap and munmap. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

__attribute__((noinline)) static void pairs(int depth, long n) {
    if (depth > 1) {
        pairs(depth - 1, n);
        __asm__ volatile("" ::: "memory");
        return;
    }
    for (long i = 0; i < n; i++) {
        char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || munmap(p, 4096)) exit(1);
    }
}

int main(void) {
    int depth;
    long n;
    void *volatile p = malloc(1);
    free(p);
    puts("ready");
    fflush(stdout);
    while (scanf("%d %ld", &depth, &n) == 2) {
        double began = now();
        pairs(depth, n);
        printf("done %.1f\n", (now() - began) / n);
        fflush(stdout);
    }
}
