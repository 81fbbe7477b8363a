// The C++ version of trial.c: sessions in a hash table, each with a string; "own" leaks vectors of 3,000 bytes.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

int main(int, char **argv) {
    bool leaks = argv[1] && argv[2] && strcmp(argv[2], "own") == 0;
    std::unordered_map<unsigned, std::string> cache;
    static std::vector<std::vector<char>> kept;
    kept.reserve(1 << 20);
    unsigned x = 12345;
    auto request = [&](bool leak) {
        x = x * 1664525 + 1013904223;
        unsigned key = x >> 12;
        cache.emplace(key, std::string(400 + key % 8 * 64, 'x'));
        if (cache.size() > 20000) cache.erase(cache.begin());
        if (leak) kept.emplace_back(3000);
    };
    for (int i = 0; i < 50000; i++) request(false);
    puts("ready");
    fflush(stdout);
    auto start = std::chrono::steady_clock::now();
    for (long n = 0;;) {
        auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
        for (; n < ms.count(); n++) request(leaks);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}
