/* An audit library (rtld-audit(7)) that allocates for each object that the dynamic linker loads, and at each change of its
 * lists. */
#define _GNU_SOURCE
#include <link.h>
#include <stdlib.h>

static void *volatile kept;

unsigned la_version(unsigned version) { return version; }
void la_activity(uintptr_t *cookie, unsigned flag) {
    (void)cookie;
    free(kept);
    kept = malloc(100 + flag);
}
unsigned la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie) {
    (void)map, (void)lmid, (void)cookie;
    free(kept);
    kept = malloc(50);
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
unsigned la_objclose(uintptr_t *cookie) {
    (void)cookie;
    return 0;
}
