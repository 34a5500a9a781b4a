// A set of rows, scaled so that no row is longer than 1: in float32, or in int8 with a bounded error.
#pragma once
#include "../../../encoder/native/vector.h"
#include "exact.h"

struct Rows {
    const float *values;     // (n, dim), as the caller gave them
    const int64_t *chosen;   // positions to compare; null: all
    const double *inverse;   // 1 / length of each row if rows are normalized; null otherwise
    const double *center;    // (dim) subtracted from every row before scaling; null: nothing
    double factor;           // what rows are multiplied by when there is no `inverse`
    int64_t dim;

    long position(long entry) const { return chosen ? chosen[entry] : entry; }
    const float *row(long position) const { return values + position * dim; }
    double weight(long position) const { return inverse ? inverse[position] : 1.0; }
    double scale(long position) const { return inverse ? inverse[position] : factor; }
};

static float exact_pair(int kind, const Rows &left, long i, const Rows &right, long j) {
    return exact_score(kind, left.row(i), right.row(j), left.dim, left.weight(i) * right.weight(j));
}

// The scaled row, rounded once; zeros up to `padded`.
static void scale_row(const Rows &rows, long position, float *out, long padded) {
    const float *x = rows.row(position);
    const double scale = rows.scale(position);
    if (rows.center)
        for (long k = 0; k < rows.dim; k++) out[k] = (float)((x[k] - rows.center[k]) * scale);
    else
        for (long k = 0; k < rows.dim; k++) out[k] = (float)(x[k] * scale);
    for (long k = rows.dim; k < padded; k++) out[k] = 0;
}

static float square_sum(const float *x, long n) {
    Vec sum = all(0.0f);
    for (long k = 0; k < n; k += LANES) sum += load(x + k) * load(x + k);
    return sum_of(sum);
}

// x = step * (out - 128) + rest: integers from 1 to 255. Returns the length of the rest, rounded up.
static float to_int8(const float *x, long padded, uint8_t *out, float *step) {
    Vec most = all(0.0f);
    for (long k = 0; k < padded; k += LANES) most = larger(most, larger(load(x + k), -load(x + k)));
    float top = largest_of(most);
    *step = top > 1e-30f ? top / 127.0f : 1e-32f;
    const float inverse = top > 1e-30f ? 127.0f / top : 0.0f;
    Vec rest = all(0.0f);
    for (long k = 0; k < padded; k += LANES) {
        Vec v = load(x + k) * inverse + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
        IntVec whole = (IntVec)v - 0x4B400000;
        Vec off = load(x + k) - __builtin_convertvector(whole, Vec) * *step;
        rest += off * off;
        whole += 128;
#if defined(__AVX512F__)
        _mm_storeu_si128((__m128i *)(out + k), _mm512_cvtepi32_epi8((__m512i)whole));
#else
        for (int lane = 0; lane < LANES; lane++) out[k + lane] = (uint8_t)whole[lane];
#endif
    }
    return std::sqrt(sum_of(rest)) * 1.0001f + 1e-6f;  // the arithmetic above is float32 itself
}
