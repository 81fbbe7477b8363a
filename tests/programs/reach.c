/* Blocks that are held in every way there is, and blocks that nothing holds: each kind is allocated by a function of its
 * own, `held_...` or `lost_...`. Threads keep the heap busy meanwhile. */
#include "common.h"
#include <pthread.h>
#include <sys/mman.h>

struct node {
    struct node *next, *other;
    long value[3];
};

/* Allocates a node; the caller, which is not inlined, names the kind. */
#define KIND(name)                                          \
    NOINLINE static struct node *name(void) {               \
        struct node *n = calloc(1, sizeof *n);              \
        KEEP(n);                                            \
        return n;                                           \
    }

KIND(held_global) KIND(held_list) KIND(held_inside) KIND(held_behind) KIND(held_tagged) KIND(held_packed)
KIND(held_mapping) KIND(held_stack) KIND(held_register) KIND(held_sleeper) KIND(held_thread_local) KIND(held_tree)
KIND(held_rotating) KIND(held_result)
KIND(lost_plain) KIND(lost_list) KIND(lost_cycle) KIND(lost_self) KIND(lost_tree) KIND(lost_xored)
KIND(lost_thread_local) KIND(lost_by_freed) KIND(lost_inside)

enum { EACH = 20, ROTATING = 64 };

/* Not static: what is only written to would be left out. */
struct node *global, *list, *inside[EACH], *behind[EACH], *tree;
uintptr_t tagged[EACH], xored[EACH];
struct { char one; struct node *p; } __attribute__((packed)) packed[EACH];
struct node **mapping;
struct node *volatile rotating[2][ROTATING];
__thread struct node *of_thread[EACH];
static volatile int go_on = 1, ready;

/* Moves pointers between two arrays, through registers only, and in turn into new blocks that are freed again. */
static void *rotate(void *unused) {
    (void)unused;
    while (go_on) {
        for (int i = 0; i < ROTATING; i++) {
            int from = rotating[0][i] ? 0 : 1;
            struct node *p = rotating[from][i];
            struct node **box = malloc(64);
            box[3] = p;
            KEEP(box);
            rotating[from][i] = NULL;
            p = box[3];
            rotating[1 - from][i] = p;
            free(box);
        }
        usleep(100);
    }
    return NULL;
}

/* Waits in a system call with a pointer in a register that calls preserve, and nowhere else. */
static int gate[2];
NOINLINE static void hold_in_register(void) {
    struct node *n = held_register();
    char c;
    long r;
#if defined(__x86_64__)
    register struct node *kept __asm__("r12") = n;
    n = NULL;
    KEEP(n);
    __atomic_store_n(&ready, 1, __ATOMIC_SEQ_CST);
    __asm__ volatile("syscall" : "=a"(r), "+r"(kept) : "0"(0L), "D"((long)gate[0]), "S"(&c), "d"(1L)
                     : "rcx", "r11", "memory");
    n = kept;
#else
    __atomic_store_n(&ready, 1, __ATOMIC_SEQ_CST);
    r = read(gate[0], &c, 1);
#endif
    (void)r;
    n->value[0] = 1;
    KEEP(n);
    free(n);
}
static void *sleeper(void *unused) {
    (void)unused;
    hold_in_register();
    return NULL;
}

static void *spinner(void *unused) {
    (void)unused;
    struct node *n = held_sleeper();
    unsigned long k = 0;
    while (go_on) {
        k++;
        KEEP(n);
    }
    n->value[0] = (long)k;
    return NULL;
}

static void *ends(void *unused) {
    (void)unused;
    for (int i = 0; i < EACH; i++) of_thread[i] = lost_thread_local();
    return NULL;
}

static void *returns(void *unused) {
    (void)unused;
    return held_result();
}

static struct node *grow(struct node *(*make)(void), int depth) {
    if (depth == 0) return NULL;
    struct node *n = make();
    n->next = grow(make, depth - 1);
    n->other = grow(make, depth - 1);
    return n;
}

/* What is lost, in a frame of its own that is overwritten afterwards. */
NOINLINE static void lose(void) {
    for (int i = 0; i < EACH; i++) {
        struct node *n = lost_plain();
        KEEP(n);
    }
    struct node *first = NULL;
    for (int i = 0; i < EACH; i++) {
        struct node *n = lost_list();
        n->next = first;
        first = n;
    }
    struct node *a = lost_cycle(), *b = lost_cycle(), *c = lost_cycle();
    a->next = b, b->next = c, c->next = a;
    for (int i = 0; i < EACH; i++) {
        struct node *n = lost_self();
        n->next = n;
    }
    struct node *root = grow(lost_tree, 5);
    KEEP(root);
    for (int i = 0; i < EACH; i++) xored[i] = (uintptr_t)lost_xored() ^ (uintptr_t)0x5a5a5a5a5a5a5a5aull;
    struct node *outer = lost_inside();
    outer->next = (struct node *)&lost_inside()->value[1];
    struct node *holder[EACH];
    for (int i = 0; i < EACH; i++) {
        holder[i] = malloc(256);
        ((struct node **)holder[i])[20] = lost_by_freed();
    }
    for (int i = 0; i < EACH; i++) free(holder[i]);
}

NOINLINE static void overwrite(void) {
    volatile char much[16 << 10];
    for (size_t i = 0; i < sizeof much; i++) much[i] = 0;
}

NOINLINE static void hold(void) {
    global = held_global();
    for (int i = 0; i < EACH; i++) {
        struct node *n = held_list();
        n->next = list;
        list = n;
        inside[i] = (struct node *)&held_inside()->value[2];
        behind[i] = held_behind() + 1;
        tagged[i] = (uintptr_t)held_tagged() | 3;
        packed[i].p = held_packed();
        mapping[1000 + i] = held_mapping();
        of_thread[i] = held_thread_local();
    }
    for (int i = 0; i < ROTATING; i++) rotating[0][i] = held_rotating();
    tree = grow(held_tree, 5);
}

int main(void) {
    mapping = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED || pipe(gate) != 0) fail("mmap or pipe");
    say("ready %d\n", (int)getpid());
    pthread_t asleep, spins, rotates, short_lived, result;
    for (;;) {
        const char *line = command();
        if (is(line, "begin")) {
            hold();
            lose();
            pthread_create(&short_lived, NULL, ends, NULL);
            pthread_join(short_lived, NULL);
            pthread_create(&result, NULL, returns, NULL);
            pthread_create(&asleep, NULL, sleeper, NULL);
            pthread_create(&spins, NULL, spinner, NULL);
            pthread_create(&rotates, NULL, rotate, NULL);
            struct node *local = held_stack();
            while (!__atomic_load_n(&ready, __ATOMIC_SEQ_CST)) usleep(1000);
            overwrite();
            say("done\n");
            while (!is(command(), "end")) say("waits\n");
            local->value[0] = 1;
            KEEP(local);
            go_on = 0;
            if (write(gate[1], "x", 1) != 1) fail("write");
            void *r;
            pthread_join(asleep, NULL), pthread_join(spins, NULL), pthread_join(rotates, NULL);
            pthread_join(result, &r);
            ((struct node *)r)->value[0] = 1;
            free(r);
            say("done\n");
        } else {
            fail("what is %s?", line);
        }
    }
}
