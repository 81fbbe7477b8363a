/* The first thread's stack grows all the time, by a call every now and then; it prints "ready" from within. It ends
 * by itself when the stack reaches its limit. */
#include "common.h"
#include <poll.h>
#include <sys/resource.h>

enum { FRAME = 1200, LEAST = 8 << 20 };

static unsigned deepest;

NOINLINE static unsigned down(unsigned depth) {
    volatile char frame[FRAME];
    memset((char *)frame, (int)depth, sizeof frame);
    if (depth == 10) say("ready\n");
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (poll(&input, 1, depth < 10 ? 0 : 1) || depth >= deepest) return depth;
    unsigned below = down(depth + 1);
    for (unsigned i = 0; i < FRAME; i++) {
        if (frame[i] != (char)depth) fail("byte %u of frame %u is another", i, depth);
    }
    return below;
}

int main(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    rlim_t bytes = limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > LEAST ? LEAST : limit.rlim_cur;
    deepest = (unsigned)(bytes / 2 / (FRAME + 200));
    unsigned depth = down(0);
    say("deep %u\n", depth);
    for (;;) command();
}
