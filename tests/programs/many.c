/* A pool with 150 functions that hand out memory, more than prof can hook. Command: "go": one block of each. */
#include "common.h"

static char pool[1 << 20];
static size_t next;

#define TAKE(n) \
    NOINLINE void *take_##n(size_t size) { \
        void *p = pool + (next + 16 * (1##n % 7)) % (sizeof pool / 2); \
        next += (size + 15) & ~(size_t)15; \
        KEEP(p); \
        return p; \
    }
#define TEN(n) \
    TAKE(n##0) TAKE(n##1) TAKE(n##2) TAKE(n##3) TAKE(n##4) TAKE(n##5) TAKE(n##6) TAKE(n##7) TAKE(n##8) TAKE(n##9)
#define ALL(TEN) \
    TEN(00) TEN(01) TEN(02) TEN(03) TEN(04) TEN(05) TEN(06) TEN(07) TEN(08) TEN(09) TEN(10) TEN(11) TEN(12) TEN(13) \
    TEN(14)
ALL(TEN)

#define NAME(n) take_##n,
#define NAMES(n) \
    NAME(n##0) NAME(n##1) NAME(n##2) NAME(n##3) NAME(n##4) NAME(n##5) NAME(n##6) NAME(n##7) NAME(n##8) NAME(n##9)
static void *(*const volatile all[])(size_t) = {ALL(NAMES)};

int main(void) {
    say("ready\n");
    for (;;) {
        command();
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) all[i](32);
        say("done\n");
    }
}
