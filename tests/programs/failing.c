// A library to be preloaded: the program's allocations fail, one (FAIL_AT=N) or all from one on (FAIL_FROM=N). If COUNT
// is set, it prints the number of allocations at the end.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static long at = -1, from = -1, made;

__attribute__((constructor)) static void begin(void) {
  const char *a = getenv("FAIL_AT"), *f = getenv("FAIL_FROM");
  if (a) at = atol(a);
  if (f) from = atol(f);
}

__attribute__((destructor)) static void end(void) {
  char text[64];
  if (getenv("COUNT"))
    (void)!write(2, text, snprintf(text, sizeof text, "allocations %ld\n", made));
}

static int fails(void) {
  long n = __atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST);
  return n == at || (from > 0 && n >= from);
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return fails() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return fails() ? NULL : __libc_realloc(old, size); }
void *memalign(size_t to, size_t size) { return fails() ? NULL : __libc_memalign(to, size); }
void *aligned_alloc(size_t to, size_t size) { return fails() ? NULL : __libc_memalign(to, size); }

int posix_memalign(void **out, size_t to, size_t size) {
  *out = fails() ? NULL : __libc_memalign(to, size);
  return *out ? 0 : 12;
}
