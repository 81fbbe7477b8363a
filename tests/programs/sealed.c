/* Seals its mappings, so that none of them can be unmapped any more (mseal, Linux 6.10). Commands: "seal"; "alloc".
 * Prints "none" before "ready" if the kernel has no such call. */
#include "common.h"
#include <sys/syscall.h>

enum { MSEAL = 462, MOST = 1000 };

static void seal(void) {
    static unsigned long from[MOST], to[MOST];
    static char line[4096];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (count < MOST && fgets(line, sizeof line, maps)) {
        if (strstr(line, "[heap]") || strstr(line, "[stack]") || strstr(line, "[vsyscall]")) continue;
        sscanf(line, "%lx-%lx", &from[count], &to[count]);
        count++;
    }
    fclose(maps);
    for (int i = 0; i < count; i++) syscall(MSEAL, from[i], to[i] - from[i], 0);
}

int main(void) {
    if (syscall(MSEAL, 0, 0, 0)) say("none\n");
    say("ready\n");
    for (;;) {
        const char *c = command();
        if (is(c, "seal")) seal();
        else for (int i = 0; i < 100; i++) free(malloc(100 + i));
        say("done\n");
    }
}
