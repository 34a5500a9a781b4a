// The score of one pair, defined to the bit; ../exact.py does the same in NumPy.
//
// Products and squares of float32 are exact in float64, so fused and separate multiply-add agree. There are sixteen
// sums: term k goes to sum k mod 16 in the order of k, then halves are added to halves, the same on every processor.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

enum Kind { PRODUCT = 0, EUCLIDEAN = 1, MANHATTAN = 2 };

typedef float Eight __attribute__((vector_size(32)));
typedef float LooseEight __attribute__((vector_size(32), aligned(4), may_alias));
typedef double Wide __attribute__((vector_size(64)));

template <int KIND>
static inline void add_terms(Wide &sum, const float *a, const float *b) {
    Eight x = *(const LooseEight *)a, y = *(const LooseEight *)b;
    if (KIND == PRODUCT) {
        sum += __builtin_convertvector(x, Wide) * __builtin_convertvector(y, Wide);
        return;
    }
    Wide gap = __builtin_convertvector(x - y, Wide);  // rounded to float32 first, so that its square is exact
    if (KIND == EUCLIDEAN) sum += gap * gap;
    if (KIND == MANHATTAN) sum += gap < 0 ? -gap : gap;
}

template <int KIND>
static inline double exact_sum(const float *a, const float *b, long dim) {
    Wide low = {}, high = {};
    long k = 0;
    for (; k + 16 <= dim; k += 16) {
        add_terms<KIND>(low, a + k, b + k);
        add_terms<KIND>(high, a + k + 8, b + k + 8);
    }
    if (k < dim) {
        float x[16] = {}, y[16] = {};
        memcpy(x, a + k, (dim - k) * sizeof(float));
        memcpy(y, b + k, (dim - k) * sizeof(float));
        add_terms<KIND>(low, x, y);
        add_terms<KIND>(high, x + 8, y + 8);
    }
    Wide s = low + high;
    double four[4] = {s[0] + s[4], s[1] + s[5], s[2] + s[6], s[3] + s[7]};
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// `weight`: the product of both inverse lengths if rows are normalized, else 1.
static inline float exact_score(int kind, const float *a, const float *b, long dim, double weight) {
    double score;
    if (kind == PRODUCT)
        score = exact_sum<PRODUCT>(a, b, dim) * weight;
    else if (kind == EUCLIDEAN)
        score = -std::sqrt(exact_sum<EUCLIDEAN>(a, b, dim));
    else
        score = -exact_sum<MANHATTAN>(a, b, dim);
    return (float)score + 0.0f;  // one zero: -0 becomes 0
}
