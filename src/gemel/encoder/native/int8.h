// int8: rows of 0 to 255 with a step and a low end per row, weights of -127 to 127 with a scale per output.
//
// Sums are 32-bit integers and exact on every level, so their order does not matter: all levels give the same numbers.
#pragma once
#include "amx.h"

#if defined(GEMEL_EMULATE_AVXVNNI)  // as in amx.h
#define __AVXVNNI__ 1
static inline __m256i emulated_dpbusd(__m256i sum, __m256i a, __m256i b) {
    int32_t total[8];
    uint8_t x[32];
    int8_t y[32];
    memcpy(total, &sum, 32), memcpy(x, &a, 32), memcpy(y, &b, 32);
    for (int i = 0; i < 32; i++) total[i / 4] += (int32_t)x[i] * (int32_t)y[i];
    memcpy(&sum, total, 32);
    return sum;
}
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd
#endif

#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
#define INT8_OFFSET 128
#else
#define INT8_OFFSET 0
#endif

struct Int8 {
    typedef IntVec Sum;
    static const int STEPS = AMX_STEPS;

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
    typedef uint8_t Input;
    static const int INPUTS = 4, WEIGHT_BYTES = 4;
    static const int ROWS = TILE_ROWS;

    static inline IntVec weights(const char *p) { return *(const LooseIntVec *)p; }
    static inline IntVec step(IntVec sum, IntVec a, IntVec b) {
#if defined(__AVX512VNNI__)
        return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
        return (IntVec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__ARM_FEATURE_MATMUL_INT8)
        return (IntVec)vusdotq_s32((int32x4_t)sum, (uint8x16_t)a, (int8x16_t)b);
#else  // both signed: 128 was subtracted from the inputs, and values() adds 128 times the sum of the weights
        return (IntVec)vdotq_s32((int32x4_t)sum, (int8x16_t)a, (int8x16_t)b);
#endif
    }
#else
    // Two products of 16 bits are added in 32 bits, which cannot overflow. Adding products of 8 bits in 16 bits could.
    typedef int16_t Input;
    static const int INPUTS = 2, WEIGHT_BYTES = 2;
    static const int ROWS = LANES == 16 ? TILE_ROWS : 3;  // 3 x 3 + 3 + 1, and one for products: 14 of 16 registers

    static inline IntVec weights(const char *p) {
#if defined(__AVX512F__)
        return (IntVec)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__)
        return (IntVec)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
#elif defined(__SSE2__)
        __m128i twice = _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)p), _mm_loadl_epi64((const __m128i *)p));
        return (IntVec)_mm_srai_epi16(twice, 8);
#else
        typedef int8_t Narrow __attribute__((vector_size(LANES * 2)));
        typedef int16_t Wide __attribute__((vector_size(LANES * 4)));
        Narrow narrow;
        memcpy(&narrow, p, sizeof(narrow));
        return (IntVec)__builtin_convertvector(narrow, Wide);
#endif
    }
    static inline IntVec step(IntVec sum, IntVec a, IntVec b) {
#if defined(__AVX512F__)
        return sum + (IntVec)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
        return sum + (IntVec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
        return sum + (IntVec)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
        const IntVec low = all_int(16);  // the low halves, with their signs, and the high ones
        return sum + ((a << low) >> low) * ((b << low) >> low) + (a >> low) * (b >> low);
#endif
    }
#endif

    template <int ROWS, int VECTORS>
    static inline void values(const Product &p, const IntVec (&sum)[ROWS][VECTORS], Vec (&value)[ROWS][VECTORS], long row,
                              long column) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            long at = column + v * LANES;
            Vec scale = load(p.scale + at), total = load(p.column_sum + at), bias = load(p.bias + at);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                Vec whole = __builtin_convertvector(sum[r][v] + INT8_OFFSET * __builtin_convertvector(total, IntVec), Vec);
                value[r][v] = fused(fused(whole, all(p.step[row + r]), total * p.low[row + r]), scale, bias);
            }
        }
    }
};

// Each row gets its own grid of 256 steps from its smallest to its largest value. `even` (may be null) are factors that
// bring channels to a similar size first; the weights' columns were divided by them, so the product is the same.
static void quantize_row(const float *x, const float *even, long n, char *row, float *step, float *low) {
    typedef Int8::Input InputVec __attribute__((vector_size(LANES * sizeof(Int8::Input))));
    auto some = [&](long i, long count) {
        return even ? load_some(x + i, count) * load_some(even + i, count) : load_some(x + i, count);
    };
    Vec least_of = all(INFINITY), most_of = all(-INFINITY);
    for_lanes(n, [&](long i, long count) {
        Vec v = some(i, count);
        if (count < LANES) v = pick((IntVec)(lane_numbers() < (int32_t)count), v, all(v[0]));
        least_of = smaller(least_of, v);
        most_of = larger(most_of, v);
    });
    float least = -largest_of(-least_of), width = (largest_of(most_of) - least) / 255.0f;
    float inverse = width > 0 ? 1.0f / width : 0.0f;  // a flat row is all zeros on the grid: value = low
    memset(row + row_bytes<Int8>(n) - Int8::STEPS * 4, 0, Int8::STEPS * 4);  // the padding
    for_lanes(n, [&](long i, long count) {
        Vec v = (some(i, count) - least) * inverse + 0.5f;  // in 0.5 .. 255.5: truncation rounds
        IntVec whole = __builtin_convertvector(smaller(v, all(255.0f)), IntVec) - INT8_OFFSET;
        InputVec narrow;
#if defined(__AVX512VNNI__)
        __m128i sixteen = _mm512_cvtepi32_epi8((__m512i)whole);
        memcpy(&narrow, &sixteen, sizeof(narrow));
#else
        narrow = __builtin_convertvector(whole, InputVec);
#endif
        memcpy(row + i * sizeof(Int8::Input), &narrow, count * sizeof(Int8::Input));
    });
    *step = width;
    *low = least;
}

static void pack_int8(const int8_t *weight, long outputs, long inputs, int8_t *packed) {
    pack_groups<Int8>(outputs, inputs, packed, [&](long output, long input) { return weight[output * inputs + input]; });
}
