/* "walk": the first thread walks through the dynamic linker's list, and stays inside of that until the next command. */
#define _GNU_SOURCE
#include "common.h"
#include <link.h>

static int stay(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)info, (void)size, (void)arg;
    say("walking\n");
    command();
    return 1;
}

int main(void) {
    void *p = malloc(100);
    KEEP(p);
    say("ready\n");
    for (;;) {
        if (is(command(), "walk")) {
            dl_iterate_phdr(stay, NULL);
            say("done\n");
        }
    }
}
