/* A library to be loaded, unloaded and loaded again: one function that allocates SIZE bytes. */
#include <stdlib.h>
#ifndef SIZE
#define SIZE 333
#endif
#ifdef ROOM
/* Follows everything else: another library fits in here when this one is gone, without touching its tables. */
__attribute__((visibility("default"))) char plugin_room[ROOM];
#endif
__attribute__((visibility("default"), noinline, noipa)) void *plugin_block(void) {
    void *p = malloc(SIZE); /* @plugin_block */
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}
