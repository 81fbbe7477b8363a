// Memory that is allocated through wrappers: of malloc, one of them called by another, and of the standard library's
// containers. Each caller has blocks of its own.
#include "common.h"
#include <memory>
#include <string>
#include <vector>

// A wrapper recognised by its name.
NOINLINE static void *xmalloc(size_t n) {
    void *p = malloc(n);
    if (!p) abort();
    KEEP(p);
    return p;
}

// A wrapper of the wrapper, recognised by its use alone: small, called from many places, with the caller's size.
NOINLINE static char *text_of(size_t n) {
    char *p = static_cast<char *>(xmalloc(n + 1));
    memset(p, 'x', n);
    p[n] = 0;
    return p;
}

// Not wrappers: each allocates for itself.
NOINLINE static void *open_session() { return text_of(1000); } // @open_session
NOINLINE static void *parse_header() { return text_of(200); }
NOINLINE static void *read_body() { return text_of(5000); }
NOINLINE static void *make_entry() { return xmalloc(64); }

NOINLINE static void grow_table(std::vector<int> &table) {
    table.resize(table.size() + 1000); // @grow_table
    asm volatile("" : : "r"(table.data()) : "memory");
}

struct Node {
    int values[10];
};

NOINLINE static std::shared_ptr<Node> link_node() { return std::make_shared<Node>(); }

int main() {
    std::vector<void *> kept;
    kept.reserve(1000);
    std::vector<int> table;
    std::vector<std::shared_ptr<Node>> nodes;
    nodes.reserve(10);
    for (int i = 0; i < 10; i++) {
        kept.push_back(open_session()); // @in_main
        kept.push_back(parse_header());
        kept.push_back(read_body());
        kept.push_back(make_entry());
        nodes.push_back(link_node());
    }
    grow_table(table);
    // Everything is live when the recording ends.
    _exit(0);
}
