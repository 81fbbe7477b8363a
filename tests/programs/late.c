/* A library that is loaded after the attach; it allocates in its constructor and when called. */
#include "common.h"

static void *from_constructor;

__attribute__((constructor)) static void late_constructor(void) {
    from_constructor = malloc(1008); /* @late_constructor */
    KEEP(from_constructor);
}

NOINLINE void *late_allocate(size_t size) {
    void *p = malloc(size); /* @late_allocate */
    KEEP(p);
    return p;
}
