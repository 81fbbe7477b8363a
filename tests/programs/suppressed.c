/* A program with embedded suppressions for LeakSanitizer, and another text that looks
 * similar. */
#include "common.h"

const char *__lsan_default_suppressions(void) {
    return "# known and harmless\nleak:^known$\nleak:also_*_known\n";
}

const char *const other = "leak:wanted\n";

NOINLINE static void keep(void *p) {
    KEEP(p);
}
NOINLINE static void known(void) {
    for (int i = 0; i < 7; i++) keep(malloc(1000));
}
NOINLINE static void also_well_known(void) {
    keep(malloc(500));
}
NOINLINE static void wanted(void) {
    for (int i = 0; i < 3; i++) keep(malloc(200));
}

int main(void) {
    known();
    also_well_known();
    wanted();
    keep((void *)other);
    keep((void *)__lsan_default_suppressions());
    return 0;
}
