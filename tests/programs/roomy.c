/* A library with a malloc that takes 250 KiB of the stack in each call (LD_PRELOAD). */
#include <stddef.h>

void *__libc_malloc(size_t);

void *malloc(size_t size) {
    volatile char room[250 << 10];
    for (size_t at = 0; at < sizeof room; at += 1024) room[at] = 1;
    void *p = __libc_malloc(size);
    return room[0] ? p : NULL;
}
