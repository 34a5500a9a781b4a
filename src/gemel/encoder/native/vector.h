// Vectors of LANES floats, and the few functions on them that a transformer needs.
//
// GCC and Clang vector types: the same source becomes AVX-512, AVX2, NEON or SSE code by the compiler's flags alone.
// Every function works lane by lane in a fixed order, so a result never depends on the neighboring data.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define TILE_ROWS 8  // 8 x 3 accumulators + 3 columns + 1 row value = 28 of 32 registers
#elif defined(__AVX2__)
#define LANES 8
#define TILE_ROWS 4  // 4 x 3 + 3 + 1 = 16 of 16 registers
#else
#define LANES 4
#define TILE_ROWS 4
#endif
#define TILE_VECTORS 3
#define TILE_COLUMNS (TILE_VECTORS * LANES)

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4)));
typedef float LooseVec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t LooseIntVec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

static inline Vec load(const float *p) { return *(const LooseVec *)p; }
static inline void store(float *p, Vec v) { *(LooseVec *)p = v; }
static inline Vec all(float x) { return x - (Vec){}; }
static inline IntVec all_int(int32_t x) { return x - (IntVec){}; }
static inline Vec pick(IntVec mask, Vec yes, Vec no) { return (Vec)((mask & (IntVec)yes) | (~mask & (IntVec)no)); }
#if defined(__AVX512F__)
static inline Vec smaller(Vec a, Vec b) { return (Vec)_mm512_min_ps((__m512)a, (__m512)b); }
static inline Vec larger(Vec a, Vec b) { return (Vec)_mm512_max_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
static inline Vec smaller(Vec a, Vec b) { return (Vec)_mm256_min_ps((__m256)a, (__m256)b); }
static inline Vec larger(Vec a, Vec b) { return (Vec)_mm256_max_ps((__m256)a, (__m256)b); }
#else
static inline Vec smaller(Vec a, Vec b) { return pick((IntVec)(a < b), a, b); }
static inline Vec larger(Vec a, Vec b) { return pick((IntVec)(a > b), a, b); }
#endif

// a * b + c, rounded once where the processor can, else twice. Written out here and not left to the compiler, which would fuse
// in one tile and not in another (-ffp-contract=off keeps it from doing so): a row's bits would depend on its batch.
#if defined(__AVX512F__)
static inline Vec fused(Vec a, Vec b, Vec c) { return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__FMA__)
static inline Vec fused(Vec a, Vec b, Vec c) { return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__ARM_NEON)
static inline Vec fused(Vec a, Vec b, Vec c) {
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
static inline Vec fused(Vec a, Vec b, Vec c) { return a * b + c; }
#endif
static inline Vec fused(Vec a, Vec b, float c) { return fused(a, b, all(c)); }

static inline IntVec lane_numbers() {
    IntVec v;
    for (int i = 0; i < LANES; i++) v[i] = i;
    return v;
}

// Halves are added to halves: always the same tree.
#if defined(__AVX512F__)
static inline __m256 upper_half(Vec v) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)v), 1)); }
static inline float sum_of(Vec v) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), upper_half(v));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline float largest_of(Vec v) { return _mm512_reduce_max_ps((__m512)v); }
#else
static inline float sum_of(Vec v) {
    float x[LANES];
    store(x, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

static inline float largest_of(Vec v) {
    float x[LANES];
    store(x, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}
#endif

// The first `count` numbers of a vector, which may be all of it; the others are zero, or are not written.
#if defined(__AVX512F__)
static inline __mmask16 first_lanes(int64_t count) { return count < LANES ? (__mmask16)((1u << count) - 1) : (__mmask16)-1; }
static inline Vec load_some(const float *p, int64_t count) { return (Vec)_mm512_maskz_loadu_ps(first_lanes(count), p); }
static inline void store_some(float *p, Vec v, int64_t count) { _mm512_mask_storeu_ps(p, first_lanes(count), (__m512)v); }
static inline Vec keep_some(Vec v, int64_t count) { return (Vec)_mm512_maskz_mov_ps(first_lanes(count), (__m512)v); }
#else
static inline Vec load_some(const float *p, int64_t count) {
    if (count >= LANES) return load(p);
    float whole[LANES] = {};
    memcpy(whole, p, count * sizeof(float));
    return load(whole);
}
static inline void store_some(float *p, Vec v, int64_t count) {
    if (count >= LANES) return store(p, v);
    float whole[LANES];
    store(whole, v);
    memcpy(p, whole, count * sizeof(float));
}
static inline Vec keep_some(Vec v, int64_t count) {
    return count < LANES ? pick((IntVec)(lane_numbers() < (int32_t)count), v, all(0.0f)) : v;
}
#endif

// Calls step(i, count) for n numbers, LANES at a time: those from i, of which `count` are to be used.
template <class Step>
static inline void for_lanes(int64_t n, const Step &step) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) step(i, (int64_t)LANES);
    if (i < n) step(i, n - i);
}

// The sum over n numbers, LANES at a time: step(sum, i, count) adds those from i, of which `count` are left, to the lanes of
// a sum. Number i always goes to lane i % SUM_LANES, however wide the vectors are: the same bits on every level.
#define SUM_LANES 32
template <class Step>
static inline float sum_over(int64_t n, const Step &step) {
    const int vectors = SUM_LANES / LANES;
    Vec sum[vectors];
    for (int s = 0; s < vectors; s++) sum[s] = all(0.0f);
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
#pragma GCC unroll 8
        for (int s = 0; s < vectors; s++) step(sum[s], i + s * LANES, (int64_t)LANES);
#pragma GCC unroll 8
    for (int s = 0; s < vectors; s++)
        if (i + s * LANES < n) step(sum[s], i + s * LANES, n - i - s * LANES);
#pragma GCC unroll 3
    for (int half = vectors / 2; half; half /= 2)
        for (int s = 0; s < half; s++) sum[s] += sum[s + half];
    return sum_of(sum[0]);
}

// e^x, relative error below 2e-7; 0 for x < -87.
static inline Vec exp_of(Vec x) {
    x = smaller(larger(x, all(-87.0f)), all(88.0f));
    Vec y = x * 1.44269504f;
    Vec whole = y + 12582912.0f;
    IntVec power = (IntVec)whole - 0x4B400000;  // adding 1.5 * 2^23 leaves the whole part in the low bits
    Vec n = __builtin_convertvector(power, Vec);
    Vec r = fused(n, all(2.12194440e-4f), fused(n, all(-0.693359375f), x));  // ln 2 in two parts
    Vec f = r * 1.44269504f;
    Vec p = all(1.54697322e-4f);
    p = fused(p, f, 1.34004327e-3f);
    p = fused(p, f, 9.61802527e-3f);
    p = fused(p, f, 5.55032715e-2f);
    p = fused(p, f, 2.40226507e-1f);
    p = fused(p, f, 6.93147182e-1f);
    p = fused(p, f, 1.0f);
    return p * (Vec)((power + 127) << 23);
}

// x Phi(x) with the normal distribution's Phi: 0.5 + x P(x^2), P fitted on |x| <= 5.4; error below 8e-7.
static inline Vec gelu(Vec x) {
    const Vec end = all(5.4f);
    Vec z = smaller(larger(x, -end), end);
    Vec s = fused(z * z, all(2.0f / 29.16f), -1.0f);
    Vec p = all(3.06297850e-4f);
    p = fused(p, s, -9.55028692e-4f);
    p = fused(p, s, 1.12823385e-3f);
    p = fused(p, s, -1.39435020e-3f);
    p = fused(p, s, 3.37374117e-3f);
    p = fused(p, s, -6.49122335e-3f);
    p = fused(p, s, 9.80626512e-3f);
    p = fused(p, s, -1.40776774e-2f);
    p = fused(p, s, 1.96033269e-2f);
    p = fused(p, s, -2.57185549e-2f);
    p = fused(p, s, 3.21217179e-2f);
    p = fused(p, s, -3.92096750e-2f);
    p = fused(p, s, 4.84993719e-2f);
    p = fused(p, s, -6.53279722e-2f);
    p = fused(p, s, 1.30928114e-1f);
    return x * fused(z, p, 0.5f);
}

static inline Vec gelu_tanh(Vec x) {
    // 0.5 x (1 + tanh(y)) = x / (1 + e^(-2y))
    Vec y = 0.797884561f * fused(0.044715f * x * x, x, x);
    return x / (1.0f + exp_of(-2.0f * y));
}

static inline Vec relu(Vec x) { return larger(x, all(0.0f)); }
static inline Vec silu(Vec x) { return x / (1.0f + exp_of(-x)); }

enum Activation { NONE = 0, GELU = 1, GELU_TANH = 2, RELU = 3, SILU = 4 };

static inline Vec activate(Vec x, int activation) {
    switch (activation) {
        case GELU: return gelu(x);
        case GELU_TANH: return gelu_tanh(x);
        case RELU: return relu(x);
        case SILU: return silu(x);
        default: return x;
    }
}
