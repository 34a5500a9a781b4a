// What the processor announces and the operating system saves. CPUID is read here: the compiler's own table
// (__builtin_cpu_supports) is part of a run-time library that some toolchains do not have.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#include <cstdint>

struct Processor {
    bool avx2 = false, avxvnni = false, avx512 = false, avx512vnni = false, avx512bf16 = false, amx = false;

    Processor() {
        unsigned a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d)) return;
        const bool fma = bit(c, 12), saves = bit(c, 27);
        if (!saves || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        const uint64_t saved = saved_registers();
        const bool wide = (saved & 0x6) == 0x6, wider = (saved & 0xe6) == 0xe6, tiles = (saved & 0x60000) == 0x60000;
        avx2 = wide && fma && bit(b, 5);
        avx512 = avx2 && wider && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);  // F, DQ, BW, VL
        avx512vnni = avx512 && bit(c, 11);
        amx = tiles && bit(d, 22) && bit(d, 24) && bit(d, 25);  // bfloat16, tiles, int8
        if (!a || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return;
        avxvnni = avx2 && bit(a, 4);
        avx512bf16 = avx512vnni && bit(a, 5);
        amx = amx && avx512bf16;
    }

  private:
    static bool bit(unsigned word, int position) { return word >> position & 1; }

    static uint64_t saved_registers() {
        unsigned low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return (uint64_t)high << 32 | low;
    }
};
#endif
