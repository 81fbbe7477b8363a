/* A program that loads libraries. "alloc N" makes N blocks of 112 bytes; "load PATH" loads a library and calls its function
 * plugin_block; "linked" prints how many modules the dynamic linker lists, and a sum of their names; "find" looks for a
 * symbol that nobody has, and for the module of each function it knows. */
#define _GNU_SOURCE
#include "listed.h"
#include <dlfcn.h>

static void *blocks[4096];
static int last;

NOINLINE static void *modules_block(void) {
    void *p = malloc(112); /* @modules_block */
    KEEP(p);
    return p;
}

int main(void) {
    void *(*function)(void) = NULL;
    say("ready\n");
    for (;;) {
        const char *word = command();
        int n;
        if (sscanf(word, "alloc %d", &n) == 1) {
            while (n--) blocks[last++ % 4096] = modules_block();
            say("done\n");
        } else if (strncmp(word, "load ", 5) == 0) {
            void *library = dlopen(word + 5, RTLD_NOW | RTLD_GLOBAL);
            if (!library) fail("%s", dlerror());
            function = (void *(*)(void))dlsym(library, "plugin_block");
            if (!function) fail("%s", dlerror());
            blocks[last++ % 4096] = function();
            say("done\n");
        } else if (is(word, "linked")) {
            say_listed();
        } else if (is(word, "find")) {
            Dl_info info;
            if (dlsym(RTLD_DEFAULT, "no_such_function")) fail("a symbol");
            if (!dladdr((void *)main, &info) || (function && !dladdr((void *)function, &info)))
                fail("no module");
            say("done\n");
        } else {
            fail("what is %s?", word);
        }
    }
}
