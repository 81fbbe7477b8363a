/* A library to be loaded, unloaded and loaded again: one function that allocates SIZE bytes. */
#include <stdlib.h>
#ifndef SIZE
#define SIZE 333
#endif
__attribute__((visibility("default"), noinline, noipa)) void *plugin_block(void) {
    void *p = malloc(SIZE); /* @plugin_block */
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}
