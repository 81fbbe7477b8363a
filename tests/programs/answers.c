/* Decides, in its only thread, whether files in the folder that is given may be opened (fanotify), and reads commands
 * meanwhile. "alloc N": N blocks of 128 bytes, kept. "asked" prints how many files it has decided on. */
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/fanotify.h>
#include <unistd.h>

static void *blocks[65536];
static int last, asked;

NOINLINE static void *answered_block(void) {
    void *p = malloc(128); /* @answered_block */
    KEEP(p);
    return p;
}

static void answer(int group) {
    struct fanotify_event_metadata events[64];
    ssize_t n = read(group, events, sizeof events);
    struct fanotify_event_metadata *e = events;
    for (; FAN_EVENT_OK(e, n); e = FAN_EVENT_NEXT(e, n)) {
        struct fanotify_response yes = {.fd = e->fd, .response = FAN_ALLOW};
        if (write(group, &yes, sizeof yes) < 0) exit(3);
        close(e->fd);
        asked++;
    }
}

int main(int argc, char **argv) {
    (void)argc;
    int group = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY | O_LARGEFILE);
    int marked = fanotify_mark(group, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN_PERM, AT_FDCWD, argv[1]);
    if (group < 0 || marked) {
        say("unsupported\n");
        return 0;
    }
    say("ready\n");
    for (;;) {
        struct pollfd fds[2] = {{.fd = 0, .events = POLLIN}, {.fd = group, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0) continue;
        if (fds[1].revents) answer(group);
        if (!fds[0].revents) continue;
        const char *word = command();
        int n;
        if (sscanf(word, "alloc %d", &n) == 1) {
            while (n--) blocks[last++] = answered_block();
            say("done\n");
        } else if (is(word, "asked")) {
            say("done %d\n", asked);
        }
    }
}
