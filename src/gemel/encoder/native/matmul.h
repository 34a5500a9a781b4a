// Products with packed weights: y = act(x W^T + bias). This file has what all of them share, and float32.
//
// Weights are packed once into panels of up to TILE_COLUMNS outputs: for each input, the panel's outputs side by side.
// A tile of TILE_ROWS x TILE_COLUMNS sums stays in registers, and each sum adds its products in the order of the inputs:
// the bits of a row do not depend on how many rows there are, nor on the width of the vectors.
#pragma once
#include <cmath>

#include "vector.h"

static inline long round_up(long n, long step) { return (n + step - 1) / step * step; }
static inline int vectors_in(long columns) {
    return columns >= TILE_COLUMNS ? TILE_VECTORS : (int)((columns + LANES - 1) / LANES);
}
static inline long panels_of(long outputs) { return (outputs + TILE_COLUMNS - 1) / TILE_COLUMNS; }

// Operands and result of a product: where rows are stored, and what is added at the end.
struct Product {
    const float *a;         // float32 rows
    const char *a_small;    // rows of a narrower form: int8 (int8.h) or bfloat16 (bfloat16.h)
    long a_stride;          // of float32 rows in floats, of others in bytes
    const float *step, *low;          // per row of int8: value = step * integer + low
    const float *scale, *column_sum;  // per output of int8: weight = scale * integer; the sum of its integers
    const float *bias;      // per output, padded to the panel; may be null
    int activation;
    float *y;
    long y_stride;
};

// Calls work<..., ROWS, VECTORS>() with both numbers known to the compiler; `work` is a name that may end in template
// arguments of its own.
#define FOR_ROWS(work, rows, VECTORS, ...)                   \
    switch (rows) {                                          \
        case 1: work(1, VECTORS)(__VA_ARGS__); break;        \
        case 2: work(2, VECTORS)(__VA_ARGS__); break;        \
        case 3: work(3, VECTORS)(__VA_ARGS__); break;        \
        case 4: work(4, VECTORS)(__VA_ARGS__); break;        \
        case 5: work(5, VECTORS)(__VA_ARGS__); break;        \
        case 6: work(6, VECTORS)(__VA_ARGS__); break;        \
        case 7: work(7, VECTORS)(__VA_ARGS__); break;        \
        default: work(TILE_ROWS, VECTORS)(__VA_ARGS__); break; \
    }
#define FOR_TILE(work, rows, vectors, ...)                   \
    switch (vectors) {                                       \
        case 1: FOR_ROWS(work, rows, 1, __VA_ARGS__) break;  \
        case 2: FOR_ROWS(work, rows, 2, __VA_ARGS__) break;  \
        default: FOR_ROWS(work, rows, TILE_VECTORS, __VA_ARGS__) break; \
    }

// Values of a tile -> activated, into the rows of y; the last panel may be wider than the row.
template <int ROWS, int VECTORS>
static inline void activate_and_store(const Product &p, Vec (&value)[ROWS][VECTORS], long row, long column, long columns) {
    if (p.activation != NONE)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) value[r][v] = activate(value[r][v], p.activation);
    float *y = p.y + row * p.y_stride + column;
    if (columns >= VECTORS * LANES) {
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) store(y + r * p.y_stride + v * LANES, value[r][v]);
        return;
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            if (columns > v * LANES) store_some(y + r * p.y_stride + v * LANES, value[r][v], columns - v * LANES);
}

template <int ROWS, int VECTORS>
static inline void add_bias(const Product &p, Vec (&sum)[ROWS][VECTORS], long column) {
    if (!p.bias) return;
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        Vec bias = load(p.bias + column + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) sum[r][v] += bias;
    }
}

// ---- float32 ----

// A panel may be larger than the first-level cache: its next inputs are fetched while these are multiplied. `ahead` is the
// next panel, which is fetched into the second level meanwhile.
#define NEAR_INPUTS 16
template <int ROWS, int VECTORS>
static inline void multiply(const float *a, long stride, const float *panel, long inputs, const char *ahead,
                            Vec (&sum)[ROWS][VECTORS]) {
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = all(0.0f);
    for (long k = 0; k < inputs; k++, panel += VECTORS * LANES) {
        if (k % 8 == 0) __builtin_prefetch(ahead + k * 8, 0, 2);
        Vec column[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            __builtin_prefetch(panel + (NEAR_INPUTS * VECTORS + v) * LANES, 0, 3);
            column[v] = load(panel + v * LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            Vec x = all(a[r * stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[r][v] = fused(x, column[v], sum[r][v]);
        }
    }
}

template <int ROWS, int VECTORS>
static void float_tile(const Product &p, const float *panel, long inputs, long row, long column, long columns) {
    Vec sum[ROWS][VECTORS];
    const char *next = (const char *)(panel + inputs * VECTORS * LANES);
    multiply<ROWS, VECTORS>(p.a + row * p.a_stride, p.a_stride, panel, inputs, next + row / TILE_ROWS * inputs * 8, sum);
    add_bias<ROWS, VECTORS>(p, sum, column);
    activate_and_store<ROWS, VECTORS>(p, sum, row, column, columns);
}
#define FLOAT_TILE(ROWS, VECTORS) float_tile<ROWS, VECTORS>

// All rows by one panel of a packed matrix; panels are independent, so any thread may take any of them. Of the inputs only
// those from `begin` to `end` are multiplied; the rows of p.a start at `begin`.
static void float_panel(const Product &p, const float *packed, long rows, long outputs, long inputs, long panel, long begin,
                        long end) {
    long column = panel * TILE_COLUMNS, columns = outputs - column;
    int vectors = vectors_in(columns);
    packed += panel * inputs * TILE_COLUMNS + begin * vectors * LANES;  // only the last panel may be narrower
    for (long row = 0; row < rows; row += TILE_ROWS) {
        int here = (int)(rows - row < TILE_ROWS ? rows - row : TILE_ROWS);
        FOR_TILE(FLOAT_TILE, here, vectors, p, packed, end - begin, row, column, columns)
    }
}

static void float_product(const Product &p, const float *packed, long rows, long outputs, long inputs, long begin, long end) {
    for (long panel = 0; panel < panels_of(outputs); panel++)
        float_panel(p, packed, rows, outputs, inputs, panel, begin, end);
}

static void pack_float(const float *weight, long outputs, long inputs, float *packed) {
    for (long column = 0; column < outputs; column += TILE_COLUMNS) {
        long wide = vectors_in(outputs - column) * LANES;
        for (long j = 0; j < wide; j++) {
            const float *row = weight + (column + j) * inputs;
            bool real = column + j < outputs;
            for (long k = 0; k < inputs; k++) packed[k * wide + j] = real ? row[k] : 0.0f;
        }
        packed += inputs * wide;
    }
}

// ---- int8 and bfloat16: several inputs of one output stand side by side, and one instruction multiplies them ----

// A form has: Sum, the vector that products are added to; INPUTS, how many inputs a step multiplies, which take 4 bytes of
// a row; WEIGHT_BYTES, what their weights take; STEPS, which a row is padded to; ROWS of a tile; weights(), step(), values().

template <class Form>
static inline long row_bytes(long inputs) {
    return round_up(inputs, Form::INPUTS * Form::STEPS) / Form::INPUTS * 4;
}
template <class Form>
static inline long panel_bytes(long inputs, long outputs) {
    return row_bytes<Form>(inputs) / 4 * Form::WEIGHT_BYTES * round_up(outputs, LANES);
}

// `number(output, input)` is a weight in the type of the form, zero outside the matrix.
template <class Form, class Weight, class Number>
static void pack_groups(long outputs, long inputs, Weight *packed, const Number &number) {
    long deep = row_bytes<Form>(inputs) / 4 * Form::INPUTS;
    for (long column = 0; column < outputs; column += TILE_COLUMNS) {
        long wide = vectors_in(outputs - column) * LANES;
        for (long j = 0; j < wide; j++)
            for (long k = 0; k < deep; k++)
                packed[(k / Form::INPUTS * wide + j) * Form::INPUTS + k % Form::INPUTS] =
                    column + j < outputs && k < inputs ? number(column + j, k) : Weight(0);
        packed += deep * wide;
    }
}

template <class Form, int ROWS, int VECTORS>
static void grouped_tile(const Product &p, const char *panel, long steps, long row, long column, long columns) {
    typename Form::Sum sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = typename Form::Sum{};
    const char *a = p.a_small + row * p.a_stride;
    const char *ahead = panel + steps * VECTORS * LANES * Form::WEIGHT_BYTES + row / TILE_ROWS * steps * 8;
    for (long s = 0; s < steps; s++, panel += VECTORS * LANES * Form::WEIGHT_BYTES) {
        if (s % 8 == 0) __builtin_prefetch(ahead + s * 8, 0, 2);
        IntVec weights[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) weights[v] = Form::weights(panel + v * LANES * Form::WEIGHT_BYTES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            int32_t inputs;
            memcpy(&inputs, a + r * p.a_stride + s * 4, 4);
            IntVec x = all_int(inputs);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[r][v] = Form::step(sum[r][v], x, weights[v]);
        }
    }
    Vec value[ROWS][VECTORS];
    Form::template values<ROWS, VECTORS>(p, sum, value, row, column);
    activate_and_store<ROWS, VECTORS>(p, value, row, column, columns);
}
#define GROUPED_TILE(ROWS, VECTORS) grouped_tile<Form, ROWS, VECTORS>

// All rows by one panel, over `steps` steps of the inputs, into the `columns` columns of y from `column`.
template <class Form>
static void grouped_panel(const Product &p, const char *panel, long steps, long rows, long column, long columns) {
    for (long row = 0; row < rows; row += Form::ROWS) {
        int here = (int)(rows - row < Form::ROWS ? rows - row : Form::ROWS);
        FOR_TILE(GROUPED_TILE, here, vectors_in(columns), p, panel, steps, row, column, columns)
    }
}
