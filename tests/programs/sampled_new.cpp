// operator new in its forms, and malloc: each block must count once, whichever functions it passes through.
#include "common.h"
#include <new>

static void *kept[200000];
static int nkept;
static void keep(void *p) {
    KEEP(p);
    kept[nkept++] = p;
}
NOINLINE static void one(int n) {
    for (int i = 0; i < n; i++) keep(::operator new(64)); // @one
}
NOINLINE static void quiet(int n) {
    for (int i = 0; i < n; i++) keep(::operator new(64, std::nothrow)); // @quiet
}
NOINLINE static void plain(int n) {
    for (int i = 0; i < n; i++) keep(malloc(64)); // @plain
}

int main() {
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "go")) {
            one(40000);
            quiet(40000);
            plain(40000);
        } else if (is(line, "free")) {
            for (int i = 0; i < nkept; i++) {
                if (i < 80000) {
                    ::operator delete(kept[i]);
                } else {
                    free(kept[i]);
                }
            }
            nkept = 0;
        }
        say("done\n");
    }
}
