// Products with packed weights: y = act(x W^T + bias), in float32 and in int8.
//
// Weights are packed once into panels of up to TILE_COLUMNS outputs: for each input, the panel's outputs side by side.
// A tile of TILE_ROWS x TILE_COLUMNS sums stays in registers over the whole input width, and each sum adds its
// products in the order of the inputs: the bits of a row do not depend on how many rows there are.
#pragma once
#include <cmath>

#include "vector.h"

static inline long round_up(long n, long step) { return (n + step - 1) / step * step; }
static inline int vectors_in(long columns) {
    return columns >= TILE_COLUMNS ? TILE_VECTORS : (int)((columns + LANES - 1) / LANES);
}

// ---- float32 ----

// `ahead` is memory that will be read soon: the next panel is prefetched while this one is multiplied.
template <int ROWS, int VECTORS>
static inline void multiply(const float *a, long stride, const float *panel, long inputs, const char *ahead,
                            Vec (&sum)[ROWS][VECTORS]) {
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = all(0.0f);
    for (long k = 0; k < inputs; k++, panel += VECTORS * LANES) {
        if (k % 8 == 0) __builtin_prefetch(ahead + k * 8, 0, 2);
        Vec column[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) column[v] = load(panel + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            Vec x = all(a[r * stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[r][v] = fused(x, column[v], sum[r][v]);
        }
    }
}

// Calls work<ROWS, VECTORS>() with both numbers known to the compiler.
#define FOR_ROWS(work, rows, VECTORS, ...)                   \
    switch (rows) {                                          \
        case 1: work<1, VECTORS>(__VA_ARGS__); break;        \
        case 2: work<2, VECTORS>(__VA_ARGS__); break;        \
        case 3: work<3, VECTORS>(__VA_ARGS__); break;        \
        case 4: work<4, VECTORS>(__VA_ARGS__); break;        \
        case 5: work<5, VECTORS>(__VA_ARGS__); break;        \
        case 6: work<6, VECTORS>(__VA_ARGS__); break;        \
        case 7: work<7, VECTORS>(__VA_ARGS__); break;        \
        default: work<TILE_ROWS, VECTORS>(__VA_ARGS__); break; \
    }
#define FOR_TILE(work, rows, vectors, ...)                   \
    switch (vectors) {                                       \
        case 1: FOR_ROWS(work, rows, 1, __VA_ARGS__) break;  \
        case 2: FOR_ROWS(work, rows, 2, __VA_ARGS__) break;  \
        default: FOR_ROWS(work, rows, TILE_VECTORS, __VA_ARGS__) break; \
    }

// Operands and result of a product: where rows are stored, and what is added at the end.
struct Product {
    const float *a;         // float rows
    const uint8_t *a_int;   // int8 rows, with `step` and `low` per row: value = step * a_int + low
    const float *step, *low;
    long a_stride;
    float *y;
    long y_stride;
    const float *bias;      // per output, padded to the panel; may be null
    const float *scale, *column_sum;  // per output: int8 weight value = scale * integer
    int activation;
};

// Sums (bias added) -> activated, into the result; the last panel may be wider than the row.
template <int ROWS, int VECTORS>
static inline void finish(const Product &p, Vec (&sum)[ROWS][VECTORS], long row, long column, long columns) {
    if (p.activation != NONE)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[r][v] = activate(sum[r][v], p.activation);
    if (columns >= VECTORS * LANES) {
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) store(p.y + (row + r) * p.y_stride + column + v * LANES, sum[r][v]);
        return;
    }
    for (int r = 0; r < ROWS; r++) {
        float whole[VECTORS * LANES];
        for (int v = 0; v < VECTORS; v++) store(whole + v * LANES, sum[r][v]);
        memcpy(p.y + (row + r) * p.y_stride + column, whole, columns * sizeof(float));
    }
}

template <int ROWS, int VECTORS>
static void float_tile(const Product &p, const float *panel, long inputs, long row, long column, long columns) {
    Vec sum[ROWS][VECTORS];
    const char *next = (const char *)(panel + inputs * VECTORS * LANES);
    multiply<ROWS, VECTORS>(p.a + row * p.a_stride, p.a_stride, panel, inputs, next + row / TILE_ROWS * inputs * 8, sum);
    if (p.bias)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            Vec bias = load(p.bias + column + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) sum[r][v] += bias;
        }
    finish<ROWS, VECTORS>(p, sum, row, column, columns);
}

static inline long panels_of(long outputs) { return (outputs + TILE_COLUMNS - 1) / TILE_COLUMNS; }

// All rows by one panel of a packed matrix; panels are independent, so any thread may take any of them. Of the inputs only
// those from `begin` to `end` are multiplied; the rows of p.a start at `begin`.
static void float_panel(const Product &p, const float *packed, long rows, long outputs, long inputs, long panel, long begin,
                        long end) {
    long column = panel * TILE_COLUMNS, columns = outputs - column;
    int vectors = vectors_in(columns);
    packed += panel * inputs * TILE_COLUMNS + begin * vectors * LANES;  // only the last panel may be narrower
    for (long row = 0; row < rows; row += TILE_ROWS) {
        int here = (int)(rows - row < TILE_ROWS ? rows - row : TILE_ROWS);
        FOR_TILE(float_tile, here, vectors, p, packed, end - begin, row, column, columns)
    }
}

static void float_product(const Product &p, const float *packed, long rows, long outputs, long inputs, long begin, long end) {
    for (long panel = 0; panel < panels_of(outputs); panel++)
        float_panel(p, packed, rows, outputs, inputs, panel, begin, end);
}

// ---- int8: rows of u8 with a step and a low end per row, weights of s8 with a scale per column ----

#if defined(__AVX512VNNI__)
#define HAS_INT8 8
static inline IntVec add_products(IntVec sum, IntVec a, IntVec b) {
    return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define HAS_INT8 7  // pairs of u8 x s8 are added in 16 bits: weights of 7 bits cannot overflow them
static inline IntVec add_products(IntVec sum, IntVec a, IntVec b) {
    __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
    return sum + (IntVec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#else
#define HAS_INT8 0
static inline IntVec add_products(IntVec sum, IntVec a, IntVec b) { (void)a; (void)b; return sum; }
#endif

// Sums of integers are exact, so their order does not matter.
template <int ROWS, int VECTORS>
static void int8_tile(const Product &p, const int8_t *panel, long inputs, long row, long column, long columns) {
    IntVec sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = all_int(0);
    const uint8_t *a = p.a_int + row * p.a_stride;
    const char *ahead = (const char *)(panel + inputs * VECTORS * LANES) + row / TILE_ROWS * inputs * 2;
    for (long k = 0; k < inputs; k += 4, panel += VECTORS * LANES * 4) {
        if (k % 32 == 0) __builtin_prefetch(ahead + k * 2, 0, 2);
        IntVec weights[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) weights[v] = *(const LooseIntVec *)(panel + v * LANES * 4);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            int32_t four;
            memcpy(&four, a + r * p.a_stride + k, 4);
            IntVec x = all_int(four);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[r][v] = add_products(sum[r][v], x, weights[v]);
        }
    }
    Vec value[ROWS][VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        long at = column + v * LANES;
        Vec scale = load(p.scale + at), total = load(p.column_sum + at), bias = load(p.bias + at);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            Vec whole = __builtin_convertvector(sum[r][v], Vec);
            value[r][v] = fused(fused(whole, all(p.step[row + r]), total * p.low[row + r]), scale, bias);
        }
    }
    finish<ROWS, VECTORS>(p, value, row, column, columns);
}

static void int8_panel(const Product &p, const int8_t *packed, long rows, long outputs, long inputs, long panel) {
    inputs = round_up(inputs, 4);
    long column = panel * TILE_COLUMNS, columns = outputs - column;
    packed += panel * inputs * TILE_COLUMNS;
    int vectors = vectors_in(columns);
    for (long row = 0; row < rows; row += TILE_ROWS) {
        int here = (int)(rows - row < TILE_ROWS ? rows - row : TILE_ROWS);
        FOR_TILE(int8_tile, here, vectors, p, packed, inputs, row, column, columns)
    }
}

// Each row gets its own grid of 256 steps from its smallest to its largest value. `even` (may be null) are factors that
// bring channels to a similar size first; the weights' columns were divided by them, so the product is the same.
static void quantize_row(const float *x, const float *even, long n, uint8_t *out, long out_stride, float *step, float *low) {
    float least = INFINITY, most = -INFINITY;
    long i = 0;
    if (n >= LANES) {
        Vec lo = all(INFINITY), hi = all(-INFINITY);
        for (; i + LANES <= n; i += LANES) {
            Vec v = even ? load(x + i) * load(even + i) : load(x + i);
            lo = smaller(lo, v);
            hi = larger(hi, v);
        }
        least = -largest_of(-lo);
        most = largest_of(hi);
    }
    for (; i < n; i++) {
        float v = even ? x[i] * even[i] : x[i];
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    float width = (most - least) / 255.0f;
    float inverse = width > 0 ? 1.0f / width : 0.0f;  // a flat row is all zeros on the grid: value = low
    for (i = 0; i + LANES <= n; i += LANES) {
        Vec v = even ? load(x + i) * load(even + i) : load(x + i);
        v = (v - least) * inverse + 0.5f;  // in 0.5 .. 255.5: truncation rounds
        IntVec whole = __builtin_convertvector(smaller(v, all(255.0f)), IntVec);
#if defined(__AVX512F__)
        _mm_storeu_si128((__m128i *)(out + i), _mm512_cvtepi32_epi8((__m512i)whole));
#else
        for (int j = 0; j < LANES; j++) out[i + j] = (uint8_t)whole[j];
#endif
    }
    for (; i < n; i++) {
        float v = ((even ? x[i] * even[i] : x[i]) - least) * inverse + 0.5f;
        out[i] = (uint8_t)(v < 255.0f ? v : 255.0f);
    }
    for (; i < out_stride; i++) out[i] = 0;
    *step = width;
    *low = least;
}
