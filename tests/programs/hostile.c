/* While it is recorded, it overwrites all that it shares with prof: "scribble SEED" overwrites the whole mapping for
 * a while, control page included; "control SEED" the control page alone; "names" gives it names that would move a
 * terminal's cursor. It works on meanwhile, without the hooked functions. */
#include "common.h"
#include <sys/mman.h>
#include <sys/prctl.h>

static char *ring;
static size_t length;

static void find(void) {
    static char text[1 << 20];
    size_t n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    if (!f) fail("maps");
    setvbuf(f, NULL, _IONBF, 0);
    n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    ring = NULL;
    length = 0;
    for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        unsigned long from, to;
        char access[5];
        /* It can't write to what has no access. */
        if (strstr(line, "/memfd:prof-ring") && sscanf(line, "%lx-%lx %4s", &from, &to, access) == 3 && access[1] == 'w') {
            if (!ring) ring = (char *)from;
            if (ring + length == (char *)from) length += to - from;
        }
        if (end) *end = '\n';
    }
    if (!ring) fail("no ring");
}

int main(void) {
    say("ready\n");
    for (;;) {
        const char *word = command();
        unsigned seed;
        int whole = sscanf(word, "scribble %u", &seed) == 1;
        if (whole || sscanf(word, "control %u", &seed) == 1) {
            if (!ring) find();
            uint32_t x = seed * 2654435761u + 1;
            /* The first 64 KiB are the control page; heads and tables follow. */
            size_t span = whole ? length : 16384;
            for (int i = 0; i < 200000; i++) {
                uint64_t r = next_random(&x) | (uint64_t)next_random(&x) << 32;
                size_t at = next_random(&x) % 4 ? r % span : r % 65536 % span;
                /* Magic, layout and size stay, as otherwise it would not be taken for a ring. */
                if (at < 16 || at + 8 > span) continue;
                /* Its address stays, too, as prof checks that first. */
                uint64_t value = next_random(&x) % 3 ? r * 0x9e3779b97f4a7c15u : r % 64;
                memcpy(ring + at, &value, 8);
            }
            say("done\n");
        } else if (is(word, "names")) {
            prctl(PR_SET_NAME, "\033[2J\033]0;x\007");
            say("done\n");
        } else if (is(word, "go")) {
            say("done\n");
        }
    }
}
