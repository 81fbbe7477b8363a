// Allocates 3 blocks in a constructor and 20 in main, and makes no system call between its start and its end (7).
#include "common.h"
#include <stdlib.h>

NOINLINE static void first_block(int size) {
    void *p = malloc(size);
    KEEP(p);
}

__attribute__((constructor)) static void early(void) {
    for (int i = 0; i < 3; i++) first_block(100);
}

int main(void) {
    for (int i = 0; i < 20; i++) first_block(100);
    return 7;
}
