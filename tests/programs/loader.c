/* Loads libraries: "load PATH", "space PATH" (a namespace of its own, dlmopen), "call" (once), "unload",
 * "shift" (maps a page where the library was, so that it is loaded elsewhere the next time), "filter" (a
 * seccomp filter that allows everything). */
#include "common.h"
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *library;
static void *(*function)(void);
static void *keep[64];
static int kept;

static void found(void) {
    if (!library) fail("dlopen: %s", dlerror());
    function = (void *(*)(void))dlsym(library, "plugin_block");
    if (!function) fail("dlsym: %s", dlerror());
    say("done %p\n", (void *)function);
}

int main(void) {
    uintptr_t at = 0;
    size_t page = sysconf(_SC_PAGESIZE);
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (strncmp(word, "load ", 5) == 0) {
            library = dlopen(word + 5, RTLD_NOW);
            found();
            at = (uintptr_t)function & ~(uintptr_t)(page - 1);
        } else if (strncmp(word, "space ", 6) == 0) {
            library = dlmopen(LM_ID_NEWLM, word + 6, RTLD_NOW);
            found();
        } else if (is(word, "call")) {
            void *p = function();
            keep[kept++ % 64] = p;
            say("done\n");
        } else if (is(word, "unload")) {
            if (dlclose(library)) fail("dlclose");
            say("done\n");
        } else if (is(word, "filter")) {
            struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
            struct sock_fprog all = {1, code};
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all)) fail("seccomp");
            say("done\n");
        } else if (is(word, "shift")) {
            void *p = mmap((void *)at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            say("done %p\n", p);
        }
    }
}
