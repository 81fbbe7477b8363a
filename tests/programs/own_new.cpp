// operator new and delete of the program's own that do not call malloc: memory comes from an arena. "go" allocates,
// "fail" makes new throw.
#include "common.h"
#include <new>

static char arena[1 << 20] __attribute__((aligned(64)));
static size_t used;
static bool full;
static void *keep[64];
static int kept;

__attribute__((noinline)) void *operator new(size_t size) {
    if (full) throw std::bad_alloc();
    void *p = arena + used;
    used += (size + 15) & ~size_t(15);
    KEEP(p);
    return p;
}
__attribute__((noinline)) void operator delete(void *p) noexcept { fill(p, 8, 99); }
__attribute__((noinline)) void operator delete(void *p, size_t size) noexcept { fill(p, size, 99); }

struct Thing {
    char bytes[56];
};

NOINLINE static void *make() {
    void *p = new Thing; /* @own_new */
    KEEP(p);
    return p;
}

int main() {
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (is(word, "go")) {
            void *p[5];
            for (auto &q : p) fill(q = make(), 56, 1);
            for (int i = 0; i < 2; i++) {
                check(p[i], 56, 1);
                delete static_cast<Thing *>(p[i]);
            }
            for (int i = 2; i < 5; i++) keep[kept++] = p[i];
            say("done\n");
        } else if (is(word, "fail")) {
            full = true;
            bool caught = false;
            try {
                make();
            } catch (const std::bad_alloc &) {
                caught = true;
            }
            full = false;
            if (!caught) fail("no exception");
            say("done\n");
        }
    }
}
