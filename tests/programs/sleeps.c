/* Threads that wait in each way the kernel knows, over and over, and count every wait that ended early or with
 * an error, which a stop by a tracer must not cause. Waits with a timeout end by it; the others end by "beat"
 * alone, once a beat. "stop" prints the counts. Arguments: the time of the waits in ms (30), and the kinds to
 * leave out. */
#include "common.h"
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#ifndef SYS_epoll_pwait2 /* of Linux 5.11; other architectures count from elsewhere */
#define SYS_epoll_pwait2 (SYS_io_uring_setup + 16)
#endif

enum kind {
    NANOSLEEP, CLOCK_NANOSLEEP, CLOCK_ABSTIME, POLL, PPOLL, SELECT, PSELECT, EPOLL_WAIT,
    EPOLL_PWAIT2, FUTEX, FUTEX_BITSET, SIGTIMEDWAIT, SEMTIMEDOP, RECV_TIMEOUT, CONNECT_TIMEOUT,
    CONNECT_LOCAL_TIMEOUT, URING_TIMEOUT,
    TIMED, /* from here on: ended by a beat */
    READ_PIPE = TIMED, READ_SOCKET, FUTEX_FOREVER, ACCEPT, WAIT4, SIGWAITINFO, PAUSE, SIGSUSPEND,
    MSGRCV, EPOLL_FOREVER, URING_FOREVER, KINDS
};
static const char *const names[KINDS] = {
    "nanosleep", "clock_nanosleep", "clock_nanosleep_abstime", "poll", "ppoll", "select",
    "pselect", "epoll_wait", "epoll_pwait2", "futex", "futex_bitset", "sigtimedwait",
    "semtimedop", "recv_timeout", "connect_timeout", "connect_local_timeout", "io_uring_timeout", "read_pipe", "read_socket", "futex_forever",
    "accept", "wait4", "sigwaitinfo", "pause", "sigsuspend", "msgrcv", "epoll_forever",
    "io_uring_forever"};
static long wait_ms = 30;
static atomic_int stop;
static atomic_int waits[KINDS], failed[KINDS], early[KINDS], error[KINDS], left_out[KINDS];
static pthread_t ids[KINDS];
static int nothing[2], quiet[2], pipe_beat[2], socket_beat[2], child_beat[2], epoll_beat[2], ring_beat[2];
static int epoll_set, epoll_beat_set, listening, semaphores, messages;
static struct sockaddr_un address, full_local = {.sun_family = AF_UNIX};
static struct sockaddr_in full = {.sin_family = AF_INET};
static atomic_int word, handled;
static int beats;

static int64_t now_by(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static int64_t now(void) {
    return now_by(CLOCK_MONOTONIC);
}
static void on_signal(int signal) {
    (void)signal;
    atomic_fetch_add(&handled, 1);
}

/* A ring with one submission entry, in the kernel's interface, without liburing. */
struct ring { int fd; unsigned *head, *tail, *array, *chead, *ctail, cmask; struct io_uring_sqe *sqe; };
static struct ring rings[2];
static int make_ring(struct ring *r) {
    struct io_uring_params p = {0};
    r->fd = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (r->fd < 0) return -1;
    size_t size = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t csize = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    int flags = MAP_SHARED | MAP_POPULATE, prot = PROT_READ | PROT_WRITE;
    char *sq = mmap(NULL, size, prot, flags, r->fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, csize, prot, flags, r->fd, IORING_OFF_CQ_RING);
    r->sqe = mmap(NULL, p.sq_entries * sizeof *r->sqe, prot, flags, r->fd, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || r->sqe == MAP_FAILED) fail("mmap of an io_uring");
    r->tail = (unsigned *)(sq + p.sq_off.tail);
    r->array = (unsigned *)(sq + p.sq_off.array);
    r->chead = (unsigned *)(cq + p.cq_off.head);
    r->ctail = (unsigned *)(cq + p.cq_off.tail);
    return 0;
}
/* Submits one operation; returns whether it has completed when the call that waits for it returns. */
static int ring_wait(struct ring *r, uint8_t opcode, int fd, void *at) {
    *r->sqe = (struct io_uring_sqe){.opcode = opcode, .fd = fd, .addr = (uintptr_t)at, .len = 1};
    if (opcode == IORING_OP_POLL_ADD) {
        r->sqe->len = 0;
        r->sqe->poll32_events = POLLIN;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ /* its halves are the other way round, see io_uring_enter(2) */
        r->sqe->poll32_events <<= 16;
#endif
    }
    *r->array = 0;
    __atomic_store_n(r->tail, *r->tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, r->fd, 1, 0, 0, NULL, 0) != 1) return 0;
    int good = 1;
    /* Wait for the end in any case, so that a failed operation does not spoil the next. */
    while (__atomic_load_n(r->ctail, __ATOMIC_ACQUIRE) == *r->chead) {
        good &= syscall(SYS_io_uring_enter, r->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0;
    }
    unsigned head = *r->chead, tail = __atomic_load_n(r->ctail, __ATOMIC_ACQUIRE);
    __atomic_store_n(r->chead, tail, __ATOMIC_RELEASE);
    return good && tail - head == 1;
}

/* Connects to a socket that accepts nobody, until the socket's timeout. */
static int connects_in_vain(int family, const void *to, socklen_t length, long ms, int error) {
    struct timeval tv = {ms / 1000, ms % 1000 * 1000l};
    int fd = socket(family, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    int r = connect(fd, to, length);
    int seen = errno;
    close(fd);
    errno = seen;
    /* The kernel returns this error at the end of a timeout in which the call was restarted. */
    return r < 0 && (seen == error || (family == AF_INET && seen == EALREADY));
}
static int by_socket(enum kind kind) {
    return kind >= RECV_TIMEOUT && kind <= CONNECT_LOCAL_TIMEOUT;
}

/* Returns whether the wait ended as it should: by its timeout. */
static int timed_wait(enum kind kind) {
    struct timespec t = {wait_ms / 1000, wait_ms % 1000 * 1000000l}, t2 = t;
    /* The type of newer calls, on 32 bits too: __kernel_timespec. */
    struct { int64_t s, ns; } wide = {t.tv_sec, t.tv_nsec};
    struct timeval tv = {wait_ms / 1000, wait_ms % 1000 * 1000l};
    struct pollfd p = {nothing[0], POLLIN, 0};
    struct epoll_event e;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(nothing[0], &set);
    int zero = 0;
    switch (kind) {
    case NANOSLEEP: return syscall(SYS_nanosleep, &t, &t2) == 0;
    case CLOCK_NANOSLEEP: return clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL) == 0;
    case CLOCK_ABSTIME: {
        int64_t end = now() + wait_ms * 1000000ll;
        t = (struct timespec){end / 1000000000, end % 1000000000};
        return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == 0;
    }
    case POLL: return poll(&p, 1, (int)wait_ms) == 0;
    case PPOLL: return ppoll(&p, 1, &t, NULL) == 0;
    case SELECT: return select(nothing[0] + 1, &set, NULL, NULL, &tv) == 0;
    case PSELECT: return pselect(nothing[0] + 1, &set, NULL, NULL, &t, NULL) == 0;
    case EPOLL_WAIT: return epoll_wait(epoll_set, &e, 1, (int)wait_ms) == 0;
    case EPOLL_PWAIT2: return syscall(SYS_epoll_pwait2, epoll_set, &e, 1, &wide, NULL, 8) == 0;
    case FUTEX:
        return syscall(SYS_futex, &zero, FUTEX_WAIT, 0, &t, NULL, 0) < 0 && errno == ETIMEDOUT;
    case FUTEX_BITSET: {
        int64_t end = now() + wait_ms * 1000000ll;
        t = (struct timespec){end / 1000000000, end % 1000000000};
        int op = FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG;
        return syscall(SYS_futex, &zero, op, 0, &t, NULL, ~0u) < 0 && errno == ETIMEDOUT;
    }
    case SIGTIMEDWAIT: {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, SIGRTMAX);
        return sigtimedwait(&one, NULL, &t) < 0 && errno == EAGAIN;
    }
    case SEMTIMEDOP: {
        struct sembuf down = {0, -1, 0};
        return semtimedop(semaphores, &down, 1, &t) < 0 && errno == EAGAIN;
    }
    case RECV_TIMEOUT: {
        char c;
        return recv(quiet[0], &c, 1, 0) < 0 && errno == EAGAIN;
    }
    case CONNECT_TIMEOUT:
        return connects_in_vain(AF_INET, &full, sizeof full, wait_ms, EINPROGRESS);
    case CONNECT_LOCAL_TIMEOUT:
        return connects_in_vain(AF_UNIX, &full_local, sizeof full_local, wait_ms, EAGAIN);
    default: return ring_wait(&rings[0], IORING_OP_TIMEOUT, -1, &wide);
    }
}

/* Returns whether a wait that a beat ends did so. */
static int beaten_wait(enum kind kind) {
    char c;
    struct epoll_event e;
    switch (kind) {
    case READ_PIPE: return read(pipe_beat[0], &c, 1) == 1;
    case READ_SOCKET: return read(socket_beat[0], &c, 1) == 1;
    case FUTEX_FOREVER: {
        int seen = atomic_load(&word);
        while (atomic_load(&word) == seen) {
            long r = syscall(SYS_futex, &word, FUTEX_WAIT, seen, NULL, NULL, 0);
            if (r < 0 && errno != EAGAIN) return 0;
        }
        return 1;
    }
    case ACCEPT: {
        int fd = accept(listening, NULL, NULL);
        if (fd >= 0) close(fd);
        return fd >= 0;
    }
    case WAIT4: {
        pid_t pid = fork();
        if (pid == 0) _exit(read(child_beat[0], &c, 1) == 1 ? 7 : 1);
        int status;
        return wait4(pid, &status, 0, NULL) == pid && WEXITSTATUS(status) == 7;
    }
    case SIGWAITINFO: {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, SIGRTMAX - 1);
        return sigwaitinfo(&one, NULL) == SIGRTMAX - 1;
    }
    case PAUSE:
    case SIGSUSPEND: {
        /* Only the handler of its own signal may end it. */
        int before = atomic_load(&handled);
        sigset_t own;
        sigfillset(&own);
        sigdelset(&own, SIGRTMAX - 3);
        int r = kind == PAUSE ? pause() : sigsuspend(&own);
        return r < 0 && errno == EINTR && atomic_load(&handled) != before;
    }
    case MSGRCV: {
        struct { long type; char text[1]; } m;
        return msgrcv(messages, &m, 1, 0, 0) == 1;
    }
    case EPOLL_FOREVER:
        return epoll_wait(epoll_beat_set, &e, 1, -1) == 1 && read(epoll_beat[0], &c, 1) == 1;
    default:
        return ring_wait(&rings[1], IORING_OP_POLL_ADD, ring_beat[0], NULL)
            && read(ring_beat[0], &c, 1) == 1;
    }
}

static void *work(void *argument) {
    enum kind kind = (enum kind)(intptr_t)argument;
    if (kind == PAUSE) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, SIGRTMAX - 2);
        pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    }
    while (!atomic_load(&stop)) {
        /* A socket's timeout is counted in the kernel's ticks, of which the first is not a whole one; and they come
         * late, several at once, on a busy machine. */
        clockid_t clock = by_socket(kind) ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC;
        int64_t start = now_by(clock);
        int good = kind < TIMED ? timed_wait(kind) : beaten_wait(kind);
        if (!good) {
            atomic_fetch_add(&failed[kind], 1);
            atomic_store(&error[kind], errno);
        }
        long less = by_socket(kind) ? 10 : 1;
        if (kind < TIMED && now_by(clock) - start < (wait_ms - less) * 1000000ll) {
            atomic_fetch_add(&early[kind], 1);
        }
        atomic_fetch_add(&waits[kind], 1);
    }
    return NULL;
}

/* Ends one wait of each kind that needs it, and waits until they have ended. */
static void beat(void) {
    static const struct { long type; char text[1]; } m = {1, "x"};
    int before[KINDS];
    for (int k = TIMED; k < KINDS; k++) before[k] = atomic_load(&waits[k]);
    if (write(pipe_beat[1], "x", 1) != 1 || write(ring_beat[1], "x", 1) != 1) fail("write");
    if (write(socket_beat[1], "x", 1) != 1 || write(epoll_beat[1], "x", 1) != 1) fail("write");
    if (!left_out[WAIT4] && write(child_beat[1], "x", 1) != 1) fail("write");
    atomic_fetch_add(&word, 1);
    syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect: %d", errno);
    close(fd);
    if (!left_out[SIGWAITINFO]) pthread_kill(ids[SIGWAITINFO], SIGRTMAX - 1);
    if (!left_out[PAUSE]) pthread_kill(ids[PAUSE], SIGRTMAX - 2);
    if (!left_out[SIGSUSPEND]) pthread_kill(ids[SIGSUSPEND], SIGRTMAX - 3);
    if (!left_out[MSGRCV] && msgsnd(messages, &m, 1, 0)) fail("msgsnd");
    beats++;
    for (int k = TIMED; k < KINDS; k++) {
        int64_t since = now();
        while (!left_out[k] && atomic_load(&waits[k]) == before[k]) {
            usleep(1000);
            /* pause alone can miss its signal, between two waits. */
            if (k == PAUSE && now() - since > 50000000) {
                since = now();
                pthread_kill(ids[k], SIGRTMAX - 2);
            }
        }
    }
}

/* Makes a socket that accepts nobody, with all pending connections taken; 0 if there is no network. */
static int listen_in_vain(int family, void *address, socklen_t length, int error) {
    int fd = socket(family, SOCK_STREAM, 0);
    if (bind(fd, address, length) || listen(fd, 0) || getsockname(fd, address, &length)) return 0;
    for (int k = 0; k < 8; k++) {
        int c = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(c, address, length) && errno != EINPROGRESS && errno != EAGAIN) return 0;
    }
    return connects_in_vain(family, address, length, 50, error);
}

static void prepare(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t set;
    sigemptyset(&set);
    for (int s = SIGRTMAX - 3; s <= SIGRTMAX; s++) sigaddset(&set, s);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigaction(SIGRTMAX - 2, &action, NULL);
    sigaction(SIGRTMAX - 3, &action, NULL);
    if (pipe(nothing) || pipe(pipe_beat) || pipe(child_beat)) fail("pipe");
    if (pipe(epoll_beat) || pipe(ring_beat)) fail("pipe");
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, socket_beat)) fail("socketpair");
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, quiet)) fail("socketpair");
    struct timeval tv = {wait_ms / 1000, wait_ms % 1000 * 1000l};
    setsockopt(quiet[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    epoll_set = epoll_create1(0);
    epoll_beat_set = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN};
    if (epoll_ctl(epoll_set, EPOLL_CTL_ADD, nothing[0], &e)) fail("epoll_ctl");
    if (epoll_ctl(epoll_beat_set, EPOLL_CTL_ADD, epoll_beat[0], &e)) fail("epoll_ctl");
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "prof-sleeps-%d", getpid());
    listening = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 16)) {
        fail("listen");
    }
    full.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    snprintf(full_local.sun_path + 1, sizeof address.sun_path - 1, "prof-vain-%d", getpid());
    left_out[CONNECT_TIMEOUT] |= !listen_in_vain(AF_INET, &full, sizeof full, EINPROGRESS);
    left_out[CONNECT_LOCAL_TIMEOUT] |=
        !listen_in_vain(AF_UNIX, &full_local, sizeof full_local, EAGAIN);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    messages = msgget(IPC_PRIVATE, 0600);
    if (semaphores < 0) left_out[SEMTIMEDOP] = 1;
    if (messages < 0) left_out[MSGRCV] = 1;
    if (make_ring(&rings[0]) || make_ring(&rings[1])) {
        left_out[URING_TIMEOUT] = left_out[URING_FOREVER] = 1;
    }
}
static void clean_up(void) {
    semctl(semaphores, 0, IPC_RMID);
    msgctl(messages, IPC_RMID, NULL);
}

int main(int argc, char **argv) {
    if (argc > 1) wait_ms = atol(argv[1]);
    for (int i = 2; i < argc; i++) {
        for (int k = 0; k < KINDS; k++) left_out[k] |= strcmp(argv[i], names[k]) == 0;
    }
    prepare();
    atexit(clean_up);
    for (long k = 0; k < KINDS; k++) {
        if (!left_out[k] && pthread_create(&ids[k], NULL, work, (void *)k)) fail("pthread_create");
    }
    say("ready\n");
    for (;;) {
        const char *line = command();
        if (is(line, "beat")) {
            beat();
            say("done\n");
        }
        if (!is(line, "stop")) continue;
        atomic_store(&stop, 1);
        beat();
        for (int k = 0; k < KINDS; k++) {
            if (!left_out[k]) pthread_join(ids[k], NULL);
        }
        int bad = 0;
        for (int k = 0; k < KINDS; k++) {
            if (left_out[k]) continue;
            bad += failed[k] + early[k];
            int more = k >= TIMED && waits[k] > beats && k != PAUSE;
            bad += more;
            say("%s waits=%d failed=%d early=%d errno=%d more=%d\n", names[k], waits[k], failed[k],
                early[k], error[k], more);
        }
        say("done bad=%d\n", bad);
        clean_up();
    }
}
