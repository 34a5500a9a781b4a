// Numbers out of the fuzzer's bytes, and a main for compilers without libFuzzer.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

struct Input {
    const uint8_t *data;
    size_t size, at = 0;
    uint32_t noise = 2463534242u;

    uint8_t byte() { return at < size ? data[at++] : 0; }
    long upto(long most) { return (byte() | byte() << 8) % (most + 1); }  // 0 .. most
    bool flag() { return byte() & 1; }

    // Mostly small numbers; some extreme ones as in a hostile file.
    float number(bool odd) {
        noise ^= noise << 13, noise ^= noise >> 17, noise ^= noise << 5;
        float value = (noise % 2001) / 1000.f - 1.f;
        if (!odd || noise % 64) return value;
        const float strange[] = {0.f, -0.f, 1e-45f, 1e-38f, 1e30f, -1e30f, 3e38f, 1e-20f};
        return strange[noise / 64 % 8];
    }
    std::vector<float> numbers(long n, bool odd = false) {
        std::vector<float> values(n);
        for (float &value : values) value = number(odd);
        return values;
    }
};

[[noreturn]] static inline void wrong(const char *what) {
    std::fprintf(stderr, "WRONG ANSWER: %s\n", what);
    std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef FUZZ_MAIN  // random bytes for a number of seconds: program SECONDS SEED
int main(int count, char **words) {
    double seconds = count > 1 ? std::atof(words[1]) : 1;
    std::mt19937 random(count > 2 ? std::atoi(words[2]) : 0);
    auto begin = std::chrono::steady_clock::now();
    long inputs = 0;
    for (; std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds; inputs++) {
        std::vector<uint8_t> data(random() % 64);
        for (auto &byte : data) byte = (uint8_t)random();
        LLVMFuzzerTestOneInput(data.data(), data.size());
    }
    std::printf("inputs %ld\n", inputs);
}
#endif
