/* Counts what a program allocates, as the program itself sees it. */
static size_t live, peak, live_blocks, allocations, frees, reallocations, allocated;

static void grown(size_t size) {
    live += size;
    allocated += size;
    if (live > peak) peak = live;
}
static void took(size_t size) {
    allocations++;
    live_blocks++;
    grown(size);
}
static void gave(size_t size) {
    frees++;
    live_blocks--;
    live -= size;
}
static void resized(size_t from, size_t to) {
    reallocations++;
    live -= from;
    grown(to);
}
