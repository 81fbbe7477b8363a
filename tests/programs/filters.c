/* Programs under a seccomp filter. KIND: "allow" allows everything; "default" answers calls that container runtimes
 * forbid by default with an error; "memfd", "mmap" and "return" kill for memfd_create, for mapping executable
 * memory, for rt_sigreturn, "code" for mapping executable memory without a file, "mask" for rt_sigprocmask, and "look"
 * for process_vm_readv; "file" answers mapping a file's code with an error, "execmem" mapping executable memory without
 * a file, as SELinux's execmem does, and "open" openat; "none" kills for calls that don't exist. "filters KIND" installs
 * the filter and allocates on command; "filters KIND COMMAND ..." runs a command under it. */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifdef SYS_mmap2 /* what 32-bit programs use */
enum { MMAP = SYS_mmap2 };
#else
enum { MMAP = SYS_mmap };
#endif

enum { MOST = 64 };
static struct sock_filter code[MOST];
static unsigned short length;

static void add(struct sock_filter i) {
    if (length < MOST) code[length++] = i;
}
/* Adds the action for one call. */
static void one(unsigned number, unsigned action) {
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

static void filter(const char *kind) {
    const unsigned denied[] = {SYS_mount, SYS_umount2, SYS_reboot, SYS_init_module, SYS_delete_module,
                               SYS_swapon, SYS_swapoff, SYS_unshare, SYS_setns, SYS_acct, SYS_bpf,
                               SYS_quotactl, SYS_syslog, SYS_settimeofday, SYS_pivot_root};
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    if (strcmp(kind, "default") == 0) {
        for (size_t i = 0; i < sizeof denied / sizeof *denied; i++) {
            one(denied[i], SECCOMP_RET_ERRNO | EPERM);
        }
    }
    if (strcmp(kind, "memfd") == 0) one(SYS_memfd_create, SECCOMP_RET_KILL_PROCESS);
    if (strcmp(kind, "mask") == 0) one(SYS_rt_sigprocmask, SECCOMP_RET_KILL_PROCESS);
    if (strcmp(kind, "look") == 0) one(SYS_process_vm_readv, SECCOMP_RET_KILL_PROCESS);
    if (strcmp(kind, "return") == 0) one(SYS_rt_sigreturn, SECCOMP_RET_KILL_PROCESS);
    if (strcmp(kind, "mmap") == 0) {
        unsigned at = offsetof(struct seccomp_data, args[2]);
        at += __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 4 : 0;
        add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MMAP, 0, 3));
        add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at));
        add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1));
        add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    }
    if (strcmp(kind, "none") == 0) { /* calls with a number that no call has */
        add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0xff000000, 0, 1));
        add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    }
    if (strcmp(kind, "open") == 0) one(SYS_openat, SECCOMP_RET_ERRNO | EACCES);
    if (strcmp(kind, "code") == 0 || strcmp(kind, "file") == 0 || strcmp(kind, "execmem") == 0) {
        int file = kind[0] == 'f';
        unsigned answer = kind[0] == 'c' ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EACCES;
        unsigned low = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 4 : 0;
        add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MMAP, 0, 5));
        add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2]) + low));
        add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 3));
        add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3]) + low));
        add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_ANONYMOUS, file, !file));
        add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer));
    }
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    struct sock_fprog all = {length, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all)) fail("seccomp");
}

NOINLINE static void *filtered_block(void) {
    void *p = malloc(48);
    KEEP(p);
    return p;
}

int main(int argc, char **argv) {
    free(malloc(100));
    filter(argc > 1 ? argv[1] : "allow");
    if (argc > 2) {
        execvp(argv[2], argv + 2);
        fail("execvp: %d", errno);
    }
    say("ready\n");
    for (;;) {
        command();
        for (int i = 0; i < 10; i++) free(filtered_block());
        say("done\n");
    }
}
