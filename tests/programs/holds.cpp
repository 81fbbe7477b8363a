// Blocks with known holders: variables, frames of a stack, a thread-local variable, memory from before the attach. "begin" makes
// them all; "more" makes the list longer, and gives up the cart; "lose" loses the sessions and the cart; "end" ends the
// program's work.
extern "C" {
#include "common.h"
}
#include <pthread.h>

#define KIND [[gnu::noinline]]

struct Node {
    Node *next;
    long value[3];
};

// A class with a table of virtual functions, which owns a buffer.
struct Session {
    virtual ~Session() = default;
    char *buffer = nullptr;
    Session *other = nullptr;
};
namespace shop {
struct Cart : Session {
    long items[8] = {};
};
}

enum { SESSIONS = 40, LIST = 1000, CYCLE = 3 };

Session *sessions[SESSIONS];
Node *list_head, *cycle;
shop::Cart *cart;
char *shared_a, *shared_b;
char **before;
thread_local char *of_thread;

KIND Session *open_session() { return new Session; }
KIND char *make_buffer() { return (char *)calloc(1, 1000); }
KIND Node *add_node() { return (Node *)calloc(1, sizeof(Node)); }
KIND shop::Cart *open_cart() { return new shop::Cart; }
KIND char *make_shared() { return (char *)calloc(1, 700); }
KIND char *make_for_stack() { return (char *)calloc(1, 5000); }
KIND char *make_for_outer() { return (char *)calloc(1, 5100); }
KIND char *make_for_inner() { return (char *)calloc(1, 5200); }
KIND char *make_for_both() { return (char *)calloc(1, 5300); }
KIND char *make_for_thread() { return (char *)calloc(1, 6000); }
KIND char *make_for_before() { return (char *)calloc(1, 7000); }
KIND char *make_lost() { return (char *)calloc(1, 300); }
KIND Node *make_inner() { return (Node *)calloc(1, sizeof(Node)); }
KIND Node *make_outer() { return (Node *)calloc(1, sizeof(Node)); }

Node *outer;

static int gate[2];

// Overwrites what calls have left on the stack and in registers.
KIND static void clear() {
    volatile char c[16384];
    for (auto &x : c) x = 0;
}

// Has a variable in the register in which its caller has one, and so saves that.
KIND static void inner(char *handed) {
    char *volatile both = handed;
    char *own = make_for_inner();
    char c;
    say("done\n");
    if (read(gate[0], &c, 1) != 1) fail("read");
    free(own);
    KEEP(both);
}

static void *thread(void *) {
    char *volatile on_stack = make_for_stack();
    char *volatile both = make_for_both();
    char *own = make_for_outer();
    of_thread = make_for_thread();
    clear();
    inner(both);
    free(own);
    free(both);
    free(on_stack);
    free(of_thread);
    return nullptr;
}

KIND static void begin() {
    for (auto &s : sessions) {
        s = open_session();
        s->buffer = make_buffer();
    }
    // A ring of sessions: each is held by its element of the array, too.
    for (int i = 0; i < SESSIONS; i++) sessions[i]->other = sessions[(i + 1) % SESSIONS];
    for (int i = 0; i < LIST; i++) {
        Node *n = add_node();
        n->next = list_head;
        list_head = n;
    }
    // A cycle that one pointer leads into.
    Node *first = cycle = add_node(), *last = first;
    for (int i = 1; i < CYCLE; i++) last = last->next = add_node();
    last->next = first;
    cart = open_cart();
    cart->buffer = make_buffer();
    // Two variables hold one block.
    shared_a = shared_b = make_shared();
    before[0] = make_for_before();
    // A long chain of two kinds in turn.
    Node **at = &outer;
    for (int i = 0; i < 100; i++) {
        *at = i % 2 ? make_inner() : make_outer();
        at = &(*at)->next;
    }
    for (int i = 0; i < 7; i++) {
        char *p = make_lost();
        KEEP(p);
    }
}

KIND static void more() {
    for (int i = 0; i < LIST / 2; i++) {
        Node *n = add_node();
        n->next = list_head;
        list_head = n;
    }
    // The end of the heap's last block is where the allocator's own pointer to its free memory leads.
    before[1] = make_for_before();
    free(cart->buffer);
    delete cart;
    cart = nullptr;
}

KIND static void lose() {
    for (auto &s : sessions) s = nullptr;
    cart = nullptr;
}

int main() {
    before = (char **)calloc(4, sizeof *before);
    if (pipe(gate)) fail("pipe");
    pthread_t t;
    say("ready\n");
    for (;;) {
        const char *c = command();
        if (!strcmp(c, "begin")) {
            begin();
            clear();
            if (pthread_create(&t, nullptr, thread, nullptr)) fail("pthread_create");
        } else if (!strcmp(c, "more")) {
            more();
            clear();
            say("done\n");
        } else if (!strcmp(c, "lose")) {
            lose();
            clear();
            say("done\n");
        } else if (!strcmp(c, "end")) {
            if (write(gate[1], "", 1) != 1 || pthread_join(t, nullptr)) fail("end");
            say("done\n");
        }
    }
}
