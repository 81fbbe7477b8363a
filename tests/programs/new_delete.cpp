// All forms of operator new and delete, exceptions thrown through recorded frames, and
// allocations made while an exception is in flight.
#include "common.h"
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

struct alignas(64) Wide {
    char bytes[192];
};
static void *kept[64];
static int nkept;
static void keep(void *p) {
    KEEP(p);
    kept[nkept++] = p;
}

NOINLINE static void one() {
    keep(::operator new(2001)); // @one
}
NOINLINE static void several() {
    keep(::operator new[](2002)); // @several
}
NOINLINE static void quiet() {
    keep(::operator new(2003, std::nothrow)); // @quiet
}
NOINLINE static void quiet_several() {
    keep(::operator new[](2004, std::nothrow)); // @quiet_several
}
NOINLINE static void wide() {
    Wide *w = new Wide; // @wide
    if (reinterpret_cast<uintptr_t>(w) % 64) fail("new Wide gave %p", static_cast<void *>(w));
    keep(w);
}
NOINLINE static void deletes() {
    void *p = ::operator new(2010);
    KEEP(p);
    ::operator delete(p);
    p = ::operator new(2010);
    KEEP(p);
    ::operator delete(p, static_cast<size_t>(2010));
    p = ::operator new[](2010);
    KEEP(p);
    ::operator delete[](p);
    p = ::operator new(2048, std::align_val_t(128));
    KEEP(p);
    ::operator delete(p, std::align_val_t(128));
}
struct InFlight {
    ~InFlight() { keep(::operator new(2005)); } // @in_flight
};
NOINLINE static void thrower(int depth) {
    if (depth == 0) throw std::runtime_error("thrown on purpose");
    InFlight marker;
    thrower(depth - 1);
    KEEP(depth);
}
NOINLINE static int catches() {
    int caught = 0;
    for (int i = 0; i < 3; i++) {
        try {
            thrower(4);
        } catch (const std::exception &e) {
            if (std::string(e.what()) == "thrown on purpose") caught++;
        }
    }
    return caught;
}
NOINLINE static int too_much() {
    volatile size_t huge = size_t(3) << (8 * sizeof(size_t) - 2);
    try {
        KEEP(kept[0]);
        void *p = ::operator new(huge);
        KEEP(p);
    } catch (const std::bad_alloc &) {
        return 1;
    }
    return 0;
}
NOINLINE static size_t containers() {
    std::vector<std::string> v;
    for (int i = 0; i < 100; i++) v.push_back(std::string(100, char('a' + i % 26)));
    size_t sum = 0;
    for (const auto &s : v) sum += s.size() + static_cast<unsigned char>(s[0]);
    return sum;
}

int main() {
    say("ready\n");
    for (;;) {
        if (is(command(), "go")) {
            one();
            several();
            quiet();
            quiet_several();
            wide();
            deletes();
            int caught = catches();
            int refused = too_much();
            say("done caught=%d refused=%d sum=%zu\n", caught, refused, containers());
        }
    }
}
