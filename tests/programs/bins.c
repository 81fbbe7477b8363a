/* Has free blocks of each size from 128 bytes to 1 KiB in bins of their own, so that the allocator's map of bins that are
   in use begins with ones. */
#include <stdio.h>
#include <stdlib.h>

/* More than a thread's cache takes. */
#define EACH 9

int main(void)
{
    static void *blocks[64][EACH];
    int live = 0;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < EACH; k++) {
            blocks[i][k] = malloc(120 + 16 * i);
            /* Keeps its neighbours apart. */
            live += malloc(24) != NULL;
        }
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < EACH; k++)
            free(blocks[i][k]);
    /* Has all free blocks sorted into their bins. */
    live += malloc(100000) != NULL;
    printf("live %d\nready\n", live);
    getchar();
    return 0;
}
