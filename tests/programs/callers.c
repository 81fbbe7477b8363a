/* Every way to call malloc: the PLT, a pointer taken before the attach, dlsym before and after, libc's own calls,
 * and a library that is loaded after the attach. Each allocates a size of its own. Built once as usual and once with
 * -fno-plt. */
#include "common.h"
#include <dlfcn.h>

typedef void *allocate(size_t);
static allocate *volatile pointer_before;
static allocate *volatile dlsym_before;
static FILE *lines;
static char text[1501];

NOINLINE static void by_call(void) {
    void *p = malloc(1001); /* @by_call */
    KEEP(p);
}
NOINLINE static void by_pointer(void) {
    void *p = pointer_before(1002); /* @by_pointer */
    KEEP(p);
}
NOINLINE static void by_dlsym_before(void) {
    void *p = dlsym_before(1003); /* @by_dlsym_before */
    KEEP(p);
}
NOINLINE static void by_dlsym_after(void) {
    allocate *a = (allocate *)dlsym(RTLD_DEFAULT, "malloc");
    void *p = a(1004); /* @by_dlsym_after */
    KEEP(p);
}
NOINLINE static void by_strdup(void) {
    char *p = strdup(text + 1500 - 1004); /* @by_strdup */
    KEEP(p);
}
NOINLINE static void by_getline(void) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n = getline(&line, &room, lines); /* @by_getline */
    if (n != 1500 || memcmp(line, text, 1500)) fail("getline gave %zd", n);
    KEEP(line);
}
NOINLINE static void by_asprintf(void) {
    char *out = NULL;
    int n = asprintf(&out, "%1006d", 17); /* @by_asprintf */
    if (n != 1006 || out[1005] != '7') fail("asprintf gave %d", n);
    KEEP(out);
}
NOINLINE static void by_late_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) fail("%s", dlerror());
    allocate *late = (allocate *)dlsym(library, "late_allocate");
    void *p = late(1007); /* @by_late_library */
    KEEP(p);
}

int main(int argc, char **argv) {
    memset(text, 'x', 1500);
    pointer_before = malloc;
    dlsym_before = (allocate *)dlsym(RTLD_DEFAULT, "malloc");
    lines = fmemopen(text, 1500, "r");
    static char buffer[4096];
    setvbuf(lines, buffer, _IOFBF, sizeof buffer);
    if (argc < 2 || !lines) fail("usage: callers LIBRARY");
    say("ready\n");
    for (;;) {
        if (is(command(), "go")) {
            by_call();
            by_pointer();
            by_dlsym_before();
            by_dlsym_after();
            by_strdup();
            by_getline();
            by_asprintf();
            by_late_library(argv[1]);
            say("done\n");
        }
    }
}
