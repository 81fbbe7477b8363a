/* Copies libc's text while it may be hooked ("copy"). As soon as the text differs from that copy, the copy takes its
 * place, as with programs that have their text in huge pages. */
#include "common.h"
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

static char *text, *copy, *original;
static size_t size, first; /* of the text, and up to its first changed byte */
static volatile int replaced;

static int find(struct dl_phdr_info *info, size_t len, void *unused) {
    (void)len;
    (void)unused;
    if (!strstr(info->dlpi_name, "libc.so")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uintptr_t start = (info->dlpi_addr + p->p_vaddr) & ~(page - 1);
        uintptr_t end = (info->dlpi_addr + p->p_vaddr + p->p_memsz + page - 1) & ~(page - 1);
        text = (char *)start;
        size = end - start;
    }
    return 0;
}

static void *watch(void *unused) {
    (void)unused;
    volatile char *now = text + first;
    while (*now == copy[first]) continue;
    if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, text) != text) fail("mremap");
    replaced = 1;
    return NULL;
}

int main(void) {
    dl_iterate_phdr(find, NULL);
    if (!text) fail("libc");
    original = malloc(size);
    memcpy(original, text, size);
    say("ready\n");
    for (;;) {
        const char *c = command();
        if (strcmp(c, "copy") == 0) {
            pthread_t thread;
            copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (copy == MAP_FAILED) fail("mmap");
            memcpy(copy, text, size);
            while (first < size - 1 && copy[first] == original[first]) first++;
            if (mprotect(copy, size, PROT_READ | PROT_EXEC)) fail("mprotect");
            if (pthread_create(&thread, NULL, watch, NULL)) fail("thread");
            pthread_detach(thread);
        } else if (strcmp(c, "work") == 0) {
            for (int i = 0; i < 1000; i++) {
                void *p = malloc(32);
                KEEP(p);
                free(p);
            }
        }
        say("done replaced=%d same=%d\n", replaced, memcmp(text, original, size) == 0);
    }
}
