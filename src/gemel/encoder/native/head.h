// The head of a masked language model, and SPLADE's pooling of it: hidden states in, one weight per text and word out.
//
// The product with the word table is made panel by panel, and its numbers are pooled while they are in the cache: there
// is never a number per token and word. Each number is that of one token, and a text pools its tokens in their order, so
// the bits of a text do not depend on the other texts of a call.
#pragma once
#include "network.h"
#include "team.h"

extern "C" {
struct WordHead {
    Linear dense, table;  // dense is float32; the table may be int8 or bfloat16, without factors
    Norm norm;
    int64_t activation, logarithms, sums;  // logarithms: how often ln(1 + x) is taken; sums: of tokens, else the largest
};
}

// ln(1 + x) for x >= 0, relative error below 2e-7; what is not finite stays as it is.
static inline Vec log1p_of(Vec x) {
    Vec u = x + 1.0f;
    Vec lost = (x - (u - 1.0f)) / u;  // what the sum rounded away
    IntVec power = ((IntVec)u - 0x3F3504F3) >> 23;  // u = 2^power m, m between sqrt(1/2) and sqrt(2)
    Vec f = (Vec)((IntVec)u - (power << 23)) - 1.0f, n = __builtin_convertvector(power, Vec);
    Vec p = all(6.74646199e-2f);
    p = fused(p, f, -1.16755806e-1f);
    p = fused(p, f, 1.18882068e-1f);
    p = fused(p, f, -1.24056049e-1f);
    p = fused(p, f, 1.42195478e-1f);
    p = fused(p, f, -1.66679949e-1f);
    p = fused(p, f, 2.00021192e-1f);
    p = fused(p, f, -2.50000089e-1f);
    p = fused(p, f, 3.33333135e-1f);
    Vec square = f * f;
    Vec y = fused(n, all(-2.12194440e-4f), fused(square, all(-0.5f), f * square * p)) + lost;  // ln 2 in two parts
    y = fused(n, all(0.693359375f), f + y);
    return pick((IntVec)(x - x == all(0.0f)), y, x);
}

static inline Vec logarithm_of(Vec x, int64_t times) {
    for (; times; times--) x = log1p_of(x);
    return x;
}

// Working memory of one call.
struct HeadScratch {
    float *rows, *step, *low;
    char *narrow;  // the rows in the form of the table
    int64_t bytes;

    HeadScratch(const WordHead &head, int64_t count, void *memory) : bytes(0) {
        const int64_t inputs = head.table.inputs;
        char *base = (char *)memory;
        auto take = [&](int64_t size) {
            char *at = base ? base + bytes : nullptr;  // null: only the size is needed
            bytes += round_up(size, 64);
            return at;
        };
        rows = (float *)take(count * inputs * 4);
        step = (float *)take(count * 4);
        low = (float *)take(count * 4);
        int64_t width = row_bytes<Int8>(inputs) > row_bytes<Bfloat16>(inputs) ? row_bytes<Int8>(inputs) : row_bytes<Bfloat16>(inputs);
        narrow = take(head.table.kind == FLOAT32 ? 0 : round_up(count, AMX_ROWS) * width);
    }
};

// Tokens whose numbers are pooled together: 48 KB on AVX-512.
#define HEAD_ROWS 256

// Tokens `first` .. `last` by one panel of words, into `numbers` (tokens, TILE_COLUMNS).
static void panel_numbers(const Linear &table, const HeadScratch &s, int64_t first, int64_t last, long panel, float *numbers) {
    const long inputs = table.inputs, column = panel * TILE_COLUMNS, rows = last - first;
    const long columns = table.outputs - column < TILE_COLUMNS ? round_up(table.outputs - column, LANES) : TILE_COLUMNS;
    Product p = {};
    p.bias = table.bias + column;
    p.y = numbers;
    p.y_stride = TILE_COLUMNS;
    if (table.kind == INT8) {
        p.a_stride = row_bytes<Int8>(inputs);
        p.a_small = s.narrow + first * p.a_stride;
        p.step = s.step + first;
        p.low = s.low + first;
        p.scale = table.scale + column;
        p.column_sum = table.column_sum + column;
        const char *packed = (const char *)table.packed + panel * panel_bytes<Int8>(inputs, TILE_COLUMNS);
        narrow_panel<Int8>(p, packed, row_bytes<Int8>(inputs) / 4, rows, 0, columns);
    } else if (table.kind == BFLOAT16) {
        p.a_stride = row_bytes<Bfloat16>(inputs);
        p.a_small = s.narrow + first * p.a_stride;
        const char *packed = (const char *)table.packed + panel * panel_bytes<Bfloat16>(inputs, TILE_COLUMNS);
        narrow_panel<Bfloat16>(p, packed, row_bytes<Bfloat16>(inputs) / 4, rows, 0, columns);
    } else {
        const float *packed = (const float *)table.packed + column * inputs;
        p.a = s.rows + first * inputs;
        p.a_stride = inputs;
        for (long row = 0; row < rows; row += TILE_ROWS) {
            int here = (int)(rows - row < TILE_ROWS ? rows - row : TILE_ROWS);
            FOR_TILE(FLOAT_TILE, here, vectors_in(columns), p, packed, inputs, row, 0, columns)
        }
    }
}

// One panel of words for all texts, into its columns of `result` (texts, words), which are zero.
static void pool_panel(const WordHead &head, const HeadScratch &s, const int64_t *starts, int64_t texts, long panel, float *result) {
    const long words = head.table.outputs, column = panel * TILE_COLUMNS, columns = words - column;
    const int vectors = vectors_in(columns);
    float numbers[HEAD_ROWS * TILE_COLUMNS];
    int64_t text = 0;
    for (int64_t first = 0; first < starts[texts]; first += HEAD_ROWS) {
        const int64_t last = first + HEAD_ROWS < starts[texts] ? first + HEAD_ROWS : starts[texts];
        panel_numbers(head.table, s, first, last, panel, numbers);
        for (int64_t row = first; row < last;) {
            while (starts[text + 1] <= row) text++;
            const int64_t end = starts[text + 1] < last ? starts[text + 1] : last;
            float *out = result + text * words + column;
            for (int v = 0; v < vectors; v++) {
                const int64_t count = columns - v * LANES;
                Vec pooled = load_some(out + v * LANES, count);
                for (int64_t r = row; r < end; r++) {
                    Vec x = load(numbers + (r - first) * TILE_COLUMNS + v * LANES);
                    if (head.sums)
                        pooled += logarithm_of(pick((IntVec)(x < all(0.0f)), all(0.0f), x), head.logarithms);
                    else
                        pooled = pick((IntVec)(x > pooled) | (IntVec)(x != x), x, pooled);  // a NaN must be noticed
                }
                store_some(out + v * LANES, pooled, count);
            }
            row = end;
        }
    }
    if (head.sums) return;
    for (text = 0; text < texts; text++)  // the logarithm keeps the order, so it may wait
        for (int v = 0; v < vectors; v++) {
            float *out = result + text * words + column + v * LANES;
            store_some(out, logarithm_of(load_some(out, columns - v * LANES), head.logarithms), columns - v * LANES);
        }
}
