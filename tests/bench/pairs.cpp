// Measures its own malloc+free pairs; prints the CPU nanoseconds of each, the mean over the threads.
//   same D T N    T threads, each D calls deep, do N pairs from one place
//   moving D T N  the innermost four frames are left and entered anew for each pair, by one of 16 ways
//   random D T N  each pair is made at the end of one of 100 paths, in random order; a path is 5 to 30
//                 functions of its own
//   tree D T N    each pair is made at the end of another sequence of D + 1 functions, of which there
//                 are two
#include "../programs/common.h"
#include <array>
#include <pthread.h>
#include <time.h>
#include <utility>

namespace {

constexpr int kMaxThreads = 64;

struct Job {
    char mode;
    int depth;
    long pairs;
    double ns;
};

double cpu_ns() {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

NOINLINE void pair() {
    void *p = malloc(64);
    KEEP(p);
    free(p);
}

NOINLINE void left(unsigned way, int levels);
NOINLINE void right(unsigned way, int levels) {
    if (levels == 0) {
        pair();
    } else if (way & 1) {
        left(way >> 1, levels - 1);
    } else {
        right(way >> 1, levels - 1);
    }
    KEEP(way);
}
NOINLINE void left(unsigned way, int levels) {
    if (levels == 0) {
        pair();
    } else if (way & 1) {
        right(way >> 1, levels - 1);
    } else {
        left(way >> 1, levels - 1);
    }
    KEEP(levels);
}

// Path number Path has a function of its own for each of its frames; the last makes the pair.
template <int Path, int Frames> NOINLINE void path() {
    if constexpr (Frames <= 1) {
        void *p = malloc(64);
        KEEP(p);
        free(p);
    } else {
        path<Path, Frames - 1>();
    }
    // This is not the last statement of the function, so the call above is not a tail call.
    __asm__ volatile("" : : "i"(Path) : "memory");
}
template <int... Paths>
constexpr std::array<void (*)(), sizeof...(Paths)> all(std::integer_sequence<int, Paths...>) {
    return {path<Paths, 5 + Paths % 26>...};
}
constexpr auto kPaths = all(std::make_integer_sequence<int, 100>());

NOINLINE void bottom(Job *job) {
    uint32_t random = 12345;
    double start = cpu_ns();
    if (job->mode == 'm') {
        for (long i = 0; i < job->pairs; i++) left(next_random(&random) >> 7, 3);
    } else if (job->mode == 'r') {
        for (long i = 0; i < job->pairs; i++) {
            kPaths[(uint64_t)next_random(&random) * kPaths.size() >> 32]();
        }
    } else if (job->mode == 't') {
        // The ways differ in their first 14 steps, as the factor is odd.
        for (long i = 0; i < job->pairs; i++) left((unsigned)i * 2654435769u, job->depth);
    } else {
        for (long i = 0; i < job->pairs; i++) {
            void *p = malloc(64);
            KEEP(p);
            free(p);
        }
    }
    job->ns = (cpu_ns() - start) / (double)job->pairs;
}

NOINLINE void descend(Job *job, int left_to_go) {
    if (left_to_go <= 0) {
        bottom(job);
    } else {
        descend(job, left_to_go - 1);
    }
    KEEP(job);
}

void *work(void *argument) {
    Job *job = static_cast<Job *>(argument);
    descend(job, job->mode == 't' ? 0 : job->depth);
    return nullptr;
}

}  // namespace

int main() {
    say("ready\n");
    for (;;) {
        char mode[16];
        int depth, threads;
        long pairs;
        if (sscanf(command(), "%15s %d %d %ld", mode, &depth, &threads, &pairs) != 4) continue;
        Job jobs[kMaxThreads];
        pthread_t ids[kMaxThreads];
        if (threads < 1 || threads > kMaxThreads) fail("threads");
        for (int t = 0; t < threads; t++) {
            jobs[t] = Job{mode[0], depth, pairs, 0};
            if (pthread_create(&ids[t], nullptr, work, &jobs[t])) fail("pthread_create");
        }
        double sum = 0;
        for (int t = 0; t < threads; t++) {
            pthread_join(ids[t], nullptr);
            sum += jobs[t].ns;
        }
        say("done %.2f\n", sum / threads);
    }
}
