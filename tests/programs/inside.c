/* Threads that are nearly always inside something that can't be interrupted safely: "malloc" (with the lock of the
 * only arena), "dlopen", "printf" (on one stream), "signal" (in a handler), "fork". "stop" prints how often they did
 * it. */
#include "common.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { THREADS = 4 };
static atomic_int stop;
static atomic_ulong rounds;
static FILE *null;
static _Thread_local volatile uint32_t in_handler;

/* Blocks larger than glibc caches for each thread, so that the arena is locked each time. */
static void use_malloc(uint32_t *random) {
    struct { unsigned char *p; size_t size; } blocks[16];
    for (int i = 0; i < 16; i++) {
        blocks[i].size = 2000 + next_random(random) % 3000;
        blocks[i].p = malloc(blocks[i].size);
        fill(blocks[i].p, 64, (uint32_t)blocks[i].size);
    }
    for (int i = 0; i < 16; i++) {
        check(blocks[i].p, 64, (uint32_t)blocks[i].size);
        free(blocks[i].p);
    }
}
static void use_dlopen(uint32_t *random) {
    /* Small libraries of glibc that nothing else has loaded. */
    static const char *const names[] = {"libBrokenLocale.so.1", "libutil.so.1", "libanl.so.1",
                                        "libnss_compat.so.2"};
    const char *name = names[next_random(random) % 4];
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail("%s", dlerror());
    if (dlclose(library)) fail("%s", dlerror());
}
static void use_printf(uint32_t *random) {
    char text[200];
    double d = next_random(random) / 3.0;
    int n = snprintf(text, sizeof text, "%.30f", d);
    if (fprintf(null, "%s %d %.30f %*d\n", text, n, d, 300, n) != n + 1 + 2 + 1 + n + 1 + 300 + 1) {
        fail("printf");
    }
}
static void on_signal(int signal) {
    (void)signal;
    int saved = errno;
    for (uint32_t i = 0; i < 20000; i++) in_handler += i;
    void *p = malloc(100 + in_handler % 100);
    fill(p, 100, 7);
    check(p, 100, 7);
    free(p);
    errno = saved;
}
static void use_signal(uint32_t *random) {
    (void)random;
    if (raise(SIGRTMIN)) fail("raise");
}
static void use_fork(uint32_t *random) {
    int wanted = (int)(next_random(random) % 100), got;
    pid_t pid = fork();
    if (pid == 0) {
        void *p = malloc(5000);
        fill(p, 5000, 3);
        check(p, 5000, 3);
        free(p);
        _exit(wanted);
    }
    if (pid < 0 || waitpid(pid, &got, 0) != pid || got != wanted << 8) fail("fork");
}

static void (*use)(uint32_t *);
static void *work(void *argument) {
    uint32_t random = (uint32_t)(uintptr_t)argument;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        use(&random);
        atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*use)(uint32_t *); } all[] = {
        {"malloc", use_malloc}, {"dlopen", use_dlopen}, {"printf", use_printf},
        {"signal", use_signal}, {"fork", use_fork}};
    for (int i = 0; i < 5; i++) {
        if (argc > 1 && strcmp(argv[1], all[i].name) == 0) use = all[i].use;
    }
    if (!use) fail("one of malloc, dlopen, printf, signal, fork");
    mallopt(M_ARENA_MAX, 1);
    null = fopen("/dev/null", "w");
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN, &action, NULL);
    pthread_t ids[THREADS];
    for (uintptr_t t = 0; t < THREADS; t++) {
        if (pthread_create(&ids[t], NULL, work, (void *)(t + 99))) fail("pthread_create");
    }
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "rounds")) say("done %lu\n", atomic_load(&rounds));
        if (!is(line, "stop")) continue;
        atomic_store(&stop, 1);
        for (int t = 0; t < THREADS; t++) pthread_join(ids[t], NULL);
        say("done OK %lu rounds\n", atomic_load(&rounds));
    }
}
