// A tile: TILE_ROWS scaled rows against a panel of up to TILE_COLUMNS lanes, all sums in registers.
//
// Lanes are the packed side (left rows, queries), rows stream past them (right rows, corpus). `take` gets each pair whose
// sum may reach its limit; nothing else leaves the registers.
#pragma once
#include "rows.h"

#if defined(__AVX512VNNI__)
#define HAS_INT8 1
static inline IntVec add_four(IntVec sum, IntVec a, IntVec b) {
    return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
#else
#define HAS_INT8 0
static inline IntVec add_four(IntVec sum, IntVec a, IntVec b) { (void)a; (void)b; return sum; }
#endif

// Bits of the lanes where value >= limit.
static inline unsigned reached(Vec value, Vec limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)value, (__m512)limit, _CMP_GE_OQ);
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)value, (__m256)limit, _CMP_GE_OQ));
#else
    unsigned bits = 0;
    for (int lane = 0; lane < LANES; lane++) bits |= (unsigned)(value[lane] >= limit[lane]) << lane;
    return bits;
#endif
}

struct Panel {
    const void *packed;
    const float *bias;     // per lane: added to its sums
    const float *step;     // int8 only, per lane
    const int32_t *start;  // int8 only, per lane: subtracts what the 128 of the rows adds
    int vectors;
};

struct Stream {            // some rows in the form that tiles read
    const float *values;   // float: (rows, padded)
    const uint8_t *small;  // int8: (rows, padded)
    const float *limit;    // per row: sum + bias must reach it
    const float *step;     // int8 only, per row
    long padded;
};

enum Form { FLOAT = 0, INT8 = 1, GAPS = 2 };  // products, products of integers, negative sums of |a - b|

template <int FORM, int VECTORS>
static inline void float_sums(const Panel &panel, const Stream &stream, long row, Vec (&sum)[TILE_ROWS][VECTORS]) {
    const float *a = stream.values + row * stream.padded, *b = (const float *)panel.packed;
    for (int r = 0; r < TILE_ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = all(0.0f);
    for (long k = 0; k < stream.padded; k++, b += VECTORS * LANES) {
        Vec column[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) column[v] = load(b + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++) {
            Vec x = all(a[r * stream.padded + k]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                if (FORM == FLOAT) {
                    sum[r][v] += x * column[v];
                } else {
                    Vec gap = x - column[v];
                    sum[r][v] -= larger(gap, -gap);
                }
            }
        }
    }
}

template <int VECTORS>
static inline void int8_sums(const Panel &panel, const Stream &stream, long row, Vec (&value)[TILE_ROWS][VECTORS]) {
    const uint8_t *a = stream.small + row * stream.padded;
    const int8_t *b = (const int8_t *)panel.packed;
    IntVec sum[TILE_ROWS][VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        IntVec start = *(const LooseIntVec *)(panel.start + v * LANES);
        for (int r = 0; r < TILE_ROWS; r++) sum[r][v] = start;
    }
    for (long k = 0; k < stream.padded; k += 4, b += VECTORS * LANES * 4) {
        IntVec column[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) column[v] = *(const LooseIntVec *)(b + v * LANES * 4);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++) {
            int32_t four;
            memcpy(&four, a + r * stream.padded + k, 4);
            IntVec x = all_int(four);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[r][v] = add_four(sum[r][v], x, column[v]);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        Vec step = load(panel.step + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++)
            value[r][v] = __builtin_convertvector(sum[r][v], Vec) * step * stream.step[row + r];
    }
}

template <int FORM, int VECTORS, class Take>
static void tile(const Panel &panel, const Stream &stream, long row, Take &take) {
    Vec value[TILE_ROWS][VECTORS];
    if (FORM == INT8)
        int8_sums<VECTORS>(panel, stream, row, value);
    else
        float_sums<FORM, VECTORS>(panel, stream, row, value);
    unsigned bits[TILE_ROWS][VECTORS], any = 0;
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        Vec bias = load(panel.bias + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++)
            any |= bits[r][v] = reached(value[r][v] + bias, all(stream.limit[row + r]));
    }
    if (!any) return;
    for (int r = 0; r < TILE_ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            for (unsigned left = bits[r][v]; left; left &= left - 1) take(v * LANES + __builtin_ctz(left), row + r);
}

template <int FORM, class Take>
static void panel_by_rows(const Panel &panel, const Stream &stream, long rows, Take &take) {
    for (long row = 0; row < rows; row += TILE_ROWS) switch (panel.vectors) {
            case 1: tile<FORM, 1>(panel, stream, row, take); break;
            case 2: tile<FORM, 2>(panel, stream, row, take); break;
            default: tile<FORM, TILE_VECTORS>(panel, stream, row, take); break;
        }
}
