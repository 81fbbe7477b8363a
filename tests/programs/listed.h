/* The modules that the dynamic linker lists. */
#ifndef PROF_TESTS_LISTED_H
#define PROF_TESTS_LISTED_H
#include "common.h"
#include <link.h>

static int listed_one(struct dl_phdr_info *info, size_t size, void *to) {
    (void)size;
    unsigned long *all = to;
    all[0]++;
    for (const char *c = info->dlpi_name; *c; c++) all[1] = all[1] * 31 + (unsigned char)*c;
    return 0;
}

/* Answers with the number of modules, and a sum of their names. */
static void say_listed(void) {
    unsigned long all[2] = {0, 0};
    dl_iterate_phdr(listed_one, all);
    say("done %lu modules, %lx\n", all[0], all[1]);
}
#endif
