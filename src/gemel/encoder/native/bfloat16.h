// bfloat16: rows and weights of 16 bits, products added in float32. Only where the processor has instructions for it.
#pragma once
#include "amx.h"

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(HAS_AMX)
#define HAS_BFLOAT16 1
#else
#define HAS_BFLOAT16 0
#endif

struct Bfloat16 {
    typedef Vec Sum;
    static const int STEPS = AMX_STEPS, INPUTS = 2, WEIGHT_BYTES = 4, ROWS = TILE_ROWS;

    static inline IntVec weights(const char *p) { return *(const LooseIntVec *)p; }
    static inline Vec step(Vec sum, IntVec a, IntVec b) {
#if defined(__AVX512BF16__)
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
        return (Vec)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
#else  // never chosen: see HAS_BFLOAT16
        return sum + (Vec)(a << 16) * (Vec)(b << 16) + (Vec)(a & ~0xFFFF) * (Vec)(b & ~0xFFFF);
#endif
    }

    template <int ROWS, int VECTORS>
    static inline void values(const Product &p, const Vec (&sum)[ROWS][VECTORS], Vec (&value)[ROWS][VECTORS], long,
                              long column) {
        memcpy(value, sum, sizeof(value));
        add_bias<ROWS, VECTORS>(p, value, column);
    }
};

// To the nearest, and of two equally near ones to the even.
static inline uint16_t bfloat16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40);  // not a number
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static void bfloat16_row(const float *x, long n, char *row) {
    long i = 0;
#if defined(__AVX512BF16__)
    for (; i + LANES <= n; i += LANES) {
        __m256bh narrow = _mm512_cvtneps_pbh((__m512)load(x + i));
        memcpy(row + 2 * i, &narrow, sizeof(narrow));
    }
#endif
    for (; i < n; i++) {
        uint16_t narrow = bfloat16_of(x[i]);
        memcpy(row + 2 * i, &narrow, 2);
    }
    memset(row + 2 * n, 0, row_bytes<Bfloat16>(n) - 2 * n);
}

static void pack_bfloat16(const float *weight, long outputs, long inputs, uint16_t *packed) {
    pack_groups<Bfloat16>(outputs, inputs, packed,
                          [&](long output, long input) { return bfloat16_of(weight[output * inputs + input]); });
}
