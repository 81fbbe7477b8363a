/* DIR: mounts a tmpfs there that only this process sees. "map INODE" maps a file of it with that inode number, shared,
 * and prints "done 1" (0: there is none); "check" prints "done" and whether the file is still mapped as it was. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define LEN (1 << 20)

static char *map_file(const char *dir, unsigned long inode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/file", dir);
    for (int i = 0; i < 20000000; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
        struct stat s;
        if (fd < 0 || fstat(fd, &s) != 0) return NULL;
        unlink(path);
        if (s.st_ino == inode && ftruncate(fd, LEN) == 0) {
            char *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
            return at == MAP_FAILED ? NULL : at;
        }
        close(fd);
        if (s.st_ino > inode) return NULL;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    int mounted = unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                  mount("none", argv[1], "tmpfs", 0, NULL) == 0;
    char *at = NULL;
    say(mounted ? "ready\n" : "unsupported\n");
    for (;;) {
        const char *asked = command();
        if (strncmp(asked, "map ", 4) == 0) {
            at = map_file(argv[1], strtoul(asked + 4, NULL, 10));
            if (at) memset(at, 7, LEN);
            say("done %d\n", at != NULL);
        } else if (is(asked, "check")) {
            int same = at != NULL;
            for (int i = 0; same && i < LEN; i++) same = at[i] == 7;
            say("done %d\n", same);
        }
    }
}
