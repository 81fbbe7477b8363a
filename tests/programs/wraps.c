/* A library whose malloc and free call those of libc last. */
#include "common.h"
#include <dlfcn.h>

static void *(*next_malloc)(size_t);
static void (*next_free)(void *);

__attribute__((constructor)) static void look(void) {
    *(void **)&next_malloc = dlsym(RTLD_NEXT, "malloc");
    *(void **)&next_free = dlsym(RTLD_NEXT, "free");
}
void *malloc(size_t size) {
    if (!next_malloc) look();
    void *p = next_malloc(size);
    KEEP(p);
    return p;
}
void free(void *p) {
    if (!next_free) look();
    next_free(p);
    KEEP(p);
}
