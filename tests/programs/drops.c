/* Starts as root and continues as nobody. */
#include "common.h"
#include <sys/types.h>

int main(void) {
    if (setgid(65534) || setuid(65534)) fail("setuid");
    say("ready\n");
    while (!is(command(), "quit")) {}
    say("bye\n");
    return 0;
}
