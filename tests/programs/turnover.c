/* Always holds the same number of blocks, but never the same ones for long: a thread frees the oldest and allocates
 * another, thousands of times a second. The table of them is large, and from before. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

enum { BLOCKS = 2000, SIZE = 100, TABLE = 4 << 20 };
static char **table;
static atomic_int stop, started;

static NOINLINE char *make(void) {
    char *block = malloc(SIZE);
    if (!block) fail("malloc");
    memset(block, 1, SIZE);
    return block;
}

static void *turn(void *nothing) {
    for (int i = 0; i < BLOCKS; i++) table[i * 16] = make();
    atomic_store(&started, 1);
    for (unsigned n = 0; !atomic_load(&stop); n++) {
        char **place = &table[n % BLOCKS * 16];
        free(*place);
        *place = make();
        if (n % 64 == 0) usleep(500);
    }
    return nothing;
}

int main(void) {
    pthread_t id;
    table = calloc(TABLE, 1);
    if (!table) fail("calloc");
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "begin")) {
            if (pthread_create(&id, NULL, turn, NULL)) fail("pthread_create");
            while (!atomic_load(&started)) usleep(1000);
        } else if (is(line, "end")) {
            atomic_store(&stop, 1);
            pthread_join(id, NULL);
        }
        say("done\n");
    }
}
