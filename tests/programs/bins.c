/* Has free blocks of each size from 128 bytes to 1 KiB in bins of their own, so that the allocator's map of bins that are
   in use begins with ones. With an argument: in each bin that a size belongs to. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

/* More than a thread's cache takes. */
#define EACH 9

/* Number of sizes, the first one, and the step between two. */
static const size_t few[][3] = {{64, 120, 16}, {0}};
static const size_t all[][3] = {{69, 40, 16},      {32, 1100, 64},     {15, 3200, 512}, {9, 10800, 4096},
                                {4, 46000, 32768}, {4, 170000, 262144}, {0}};

int main(int argc, char **argv)
{
    static void *blocks[200 * EACH];
    int live = 0, n = 0;
    const size_t(*sizes)[3] = argc > 1 ? all : few;
    (void)argv;
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 1) {
        mallopt(M_MXFAST, 0);
        mallopt(M_MMAP_THRESHOLD, 16 << 20);
    }
    for (; (*sizes)[0] > 0; sizes++)
        for (size_t i = 0; i < (*sizes)[0] * EACH; i++) {
            blocks[n++] = malloc((*sizes)[1] + i / EACH * (*sizes)[2]);
            /* Keeps its neighbours apart. */
            live += malloc(24) != NULL;
        }
    while (n > 0)
        free(blocks[--n]);
    /* Has all free blocks sorted into their bins. */
    live += malloc(argc > 1 ? 2 << 20 : 100000) != NULL;
    printf("live %d\nready\n", live);
    getchar();
    return 0;
}
