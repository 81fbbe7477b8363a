/* Makes as many mappings as the kernel allows. */
#include "common.h"
#include <sys/mman.h>

enum { MOST = 1 << 18 };

int main(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = malloc(100);
    KEEP(p);
    char *all = mmap(NULL, MOST * page, PROT_NONE, flags, -1, 0);
    if (all == MAP_FAILED) fail("mmap");
    size_t at = 0;
    while (at < MOST && !mprotect(all + at * page, page, PROT_READ)) at += 2;
    say(at < MOST ? "ready\n" : "ready, the limit is higher\n");
    command();
    free(p);
}
