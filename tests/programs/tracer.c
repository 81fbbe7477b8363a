/* Traces the process named by its argument, as a debugger would, and holds it until told to quit. */
#include "common.h"
#include <sys/ptrace.h>

int main(int argc, char **argv) {
    if (argc < 2) fail("usage: tracer PID");
    if (ptrace(PTRACE_SEIZE, atoi(argv[1]), 0, 0)) fail("PTRACE_SEIZE: %s", strerror(errno));
    say("ready\n");
    for (;;) command();
}
