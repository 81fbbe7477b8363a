// Blocks of C and C++ that are held (`held_...`) or that nothing holds (`lost_...`), of the kinds that people lose. It is
// also built with a leak detector of the compiler's, and "check" then prints the detector's report of this moment. With
// the argument "exit" everything is lost at once, and the program ends.
extern "C" {
#include "common.h"
}
#include <any>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <pthread.h>
#include <string>
#include <unordered_map>
#include <vector>

extern "C" int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

namespace {

enum { EACH = 50 };

struct Node {
    Node *next = nullptr, *other = nullptr;
    long value[4] = {};
};

// Owns itself through a cycle of counted pointers.
struct Counted {
    std::shared_ptr<Counted> next;
    std::weak_ptr<Counted> back;
    long value[2] = {};
};

struct First {
    virtual ~First() = default;
    long first[4] = {};
};
struct Second {
    virtual ~Second() = default;
    long second[4] = {};
};
// A pointer to its second base points to the middle.
struct Both : First, Second {};

struct Item {
    ~Item() { KEEP_VALUE(value); }
    static void KEEP_VALUE(long &v) { __asm__ volatile("" : "+r"(v)); }
    long value = 7;
};

using Text = std::string;
using Words = std::map<int, Text>;

#define KIND [[gnu::noinline, gnu::noipa]]

// Makes what the callers hold or lose: each caller is a kind, and not inlined.
[[gnu::always_inline]] inline Node *chain(int n) {
    Node *first = nullptr;
    for (int i = 0; i < n; i++) {
        auto *node = new Node;
        node->next = first;
        first = node;
    }
    return first;
}

Node *grow(int depth) {
    if (depth == 0) return nullptr;
    auto *node = new Node;
    node->next = grow(depth - 1);
    node->other = grow(depth - 1);
    return node;
}

// Returns a graph in which each node points to two others, at random. All can be reached from the first. What is left in a
// block that is freed and given out again would hold the nodes, so the list of them is zeroed.
Node *graph(int n) {
    std::vector<Node *> all;
    uint32_t state = 0x9e3779b9;
    all.reserve(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) {
        auto *node = new Node;
        if (i > 0) {
            Node *from = all[static_cast<size_t>(i - 1)];
            from->next = node;
            node->other = all[next_random(&state) % all.size()];
        }
        all.push_back(node);
    }
    Node *first = all[0];
    memset(all.data(), 0, all.size() * sizeof all[0]);
    KEEP(first);
    return first;
}

Words *words() {
    auto *w = new Words;
    for (int i = 0; i < EACH; i++) (*w)[i] = Text(100, 'w');
    return w;
}

std::shared_ptr<Counted> ring(int n) {
    auto first = std::make_shared<Counted>();
    auto last = first;
    for (int i = 1; i < n; i++) {
        last->next = std::make_shared<Counted>();
        last->next->back = last;
        last = last->next;
    }
    last->next = first;
    return first;
}

template <class T> void keep(T *p) { KEEP(p); }

struct Holders {
    Node *global, *list, *tree, *graph;
    std::vector<Node *> vector;
    Words *map;
    std::unordered_map<Text, std::unique_ptr<Node>> table;
    std::deque<Text> deque;
    std::shared_ptr<Counted> ring;
    Second *second;
    Item *array;
    std::function<long()> function;
    std::any any;
    uintptr_t tagged[EACH];
    pthread_key_t key;
};
Holders *holders_place() {
    alignas(Holders) static char place[sizeof(Holders)];
    return new (place) Holders;
}
Holders *const held = holders_place();
thread_local Node *of_thread[EACH];
uintptr_t xored[EACH];

KIND void held_global() { held->global = chain(1); }
KIND void held_list() { held->list = chain(EACH); }
KIND void held_tree() { held->tree = grow(6); }
KIND void held_graph() { held->graph = graph(2000); }
KIND void held_vector() {
    for (int i = 0; i < EACH; i++) held->vector.push_back(chain(1));
}
KIND void held_map() { held->map = words(); }
KIND void held_table() {
    for (int i = 0; i < EACH; i++) held->table[Text(60, 'k') + std::to_string(i)] = std::make_unique<Node>();
}
KIND void held_deque() {
    for (int i = 0; i < EACH; i++) held->deque.emplace_back(200, 'd');
}
KIND void held_ring() { held->ring = ring(EACH); }
KIND void held_second() { held->second = new Both; }
KIND void held_array() { held->array = new Item[EACH]; }
KIND void held_function() {
    std::vector<long> captured(EACH, 3);
    held->function = [captured] { return captured[1]; };
}
KIND void held_any() { held->any = std::vector<Text>(EACH, Text(80, 'a')); }
KIND void held_tagged() {
    for (auto &t : held->tagged) t = reinterpret_cast<uintptr_t>(chain(1)) | 5;
}
KIND void held_by_key() { pthread_setspecific(held->key, chain(3)); }
KIND void held_thread_local() {
    for (auto &p : of_thread) p = chain(1);
}
KIND Node *held_stack() { return chain(2); }
KIND Node *held_by_thread() { return chain(2); }

KIND void lost_plain() {
    for (int i = 0; i < EACH; i++) keep(malloc(static_cast<size_t>(40 + i)));
}
KIND void lost_resized() {
    for (int i = 0; i < EACH; i++) keep(realloc(calloc(3, 40), 400));
}
KIND void lost_aligned() {
    for (int i = 0; i < EACH; i++) keep(aligned_alloc(64, 128));
}
KIND void lost_large() {
    for (int i = 0; i < 3; i++) keep(malloc(1 << 20));
}
KIND void lost_list() { keep(chain(EACH)); }
KIND void lost_tree() { keep(grow(6)); }
KIND void lost_graph() { keep(graph(2000)); }
KIND void lost_self() {
    for (int i = 0; i < EACH; i++) {
        Node *n = chain(1);
        n->next = n;
        keep(n);
    }
}
KIND void lost_two_ways() {
    Node *first = chain(EACH);
    Node *last = first;
    while (last->next) {
        last->next->other = last;
        last = last->next;
    }
    last->next = first;
    keep(first);
}
KIND void lost_vector() {
    auto *v = new std::vector<Node *>;
    for (int i = 0; i < EACH; i++) v->push_back(chain(1));
    keep(v);
}
KIND void lost_map() { keep(words()); }
KIND void lost_table() {
    auto *t = new std::unordered_map<int, std::list<Text>>;
    for (int i = 0; i < EACH; i++) (*t)[i] = {Text(90, 'a'), Text(90, 'b')};
    keep(t);
}
KIND void lost_deque() { keep(new std::deque<Text>(EACH, Text(70, 'd'))); }
KIND void lost_ring() { ring(EACH); }
KIND void lost_second() {
    for (int i = 0; i < EACH; i++) {
        Second *s = new Both;
        keep(s);
    }
}
KIND void lost_array() { keep(new Item[EACH]); }
KIND void lost_function() {
    std::vector<long> captured(EACH, 3);
    keep(new std::function<long()>([captured] { return captured[1]; }));
}
KIND void lost_xored() {
    for (auto &x : xored) x = reinterpret_cast<uintptr_t>(chain(1)) ^ static_cast<uintptr_t>(0x5a5a5a5a5a5a5a5aULL);
}
KIND void lost_released() {
    auto owner = std::make_unique<Node>();
    owner->other = chain(3);
    keep(owner.release());
}
KIND void lost_thread_local() {
    for (auto &p : of_thread) p = chain(1);
}
KIND void lost_by_freed() {
    auto *holder = static_cast<Node **>(malloc(3000));
    for (int i = 0; i < EACH; i++) holder[300 + i] = chain(1);
    keep(holder);
    free(holder);
}

KIND void overwrite() {
    volatile char much[64 << 10];
    for (auto &c : much) c = 0;
}

void *ends(void *) {
    lost_thread_local();
    overwrite();
    return nullptr;
}

int gate[2], ready[2];

void *waits(void *) {
    Node *volatile mine = held_by_thread();
    held_thread_local();
    held_by_key();
    overwrite();
    char c = 0;
    if (write(ready[1], &c, 1) != 1 || read(gate[0], &c, 1) != 1) fail("a pipe");
    mine->value[0] = 1;
    return nullptr;
}

KIND void hold() {
    held_global(), held_list(), held_tree(), held_graph(), held_vector(), held_map(), held_table(), held_deque();
    held_ring(), held_second(), held_array(), held_function(), held_any(), held_tagged();
}

KIND void lose() {
    lost_plain(), lost_resized(), lost_aligned(), lost_large(), lost_list(), lost_tree(), lost_graph(), lost_self();
    lost_two_ways(), lost_vector(), lost_map(), lost_table(), lost_deque(), lost_ring(), lost_second(), lost_array();
    lost_function(), lost_xored(), lost_released(), lost_by_freed();
}

}

int main(int argc, char **) {
    if (pipe(gate) != 0 || pipe(ready) != 0 || pthread_key_create(&held->key, nullptr) != 0) fail("pipe or key");
    if (argc == 1) say("ready %d\n", static_cast<int>(getpid()));
    pthread_t brief, waiting;
    char c = 0;
    if (argc == 1 && !is(command(), "begin")) fail("not begun");
    hold();
    lose();
    pthread_create(&brief, nullptr, ends, nullptr);
    pthread_join(brief, nullptr);
    pthread_create(&waiting, nullptr, waits, nullptr);
    if (read(ready[0], &c, 1) != 1) fail("a pipe");
    Node *volatile local = held_stack();
    overwrite();
    if (argc > 1) exit(0);
    say("done\n");
    while (is(command(), "check")) {
        if (__lsan_do_recoverable_leak_check) __lsan_do_recoverable_leak_check();
        say("done\n");
    }
    local->value[0] = 1;
    if (write(gate[1], &c, 1) != 1) fail("a pipe");
    pthread_join(waiting, nullptr);
    say("done\n");
    // What the program has lost is no failure of its own.
    _exit(0);
}
