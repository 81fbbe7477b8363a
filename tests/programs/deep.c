/* Recursion to exact depths with one allocation at the bottom. "go D" allocates 10,000 + D bytes
 * below D recursive calls. Built with and without frame pointers. */
#include "common.h"

NOINLINE static void bottom(int depth) {
    void *p = malloc(10000 + (size_t)depth); /* @bottom */
    KEEP(p);
}
NOINLINE static int descend(int left, int depth) {
    if (left == 0) {
        bottom(depth);
        return 0;
    }
    int below = descend(left - 1, depth); /* @descend */
    KEEP(below);
    return below + 1;
}

int main(void) {
    say("ready\n");
    for (;;) {
        int depth;
        if (sscanf(command(), "go %d", &depth) != 1) continue;
        if (descend(depth, depth) != depth) fail("depth");
        say("done\n");
    }
}
