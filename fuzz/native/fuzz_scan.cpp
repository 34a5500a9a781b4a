// The scan over sizes and values that the fuzzer chooses. Sanitizers watch the memory; and the pairs and neighbors that
// it finds must be those of comparing every pair exactly.
#include <algorithm>
#include <tuple>

#include "input.h"
#include "scan.cpp"

struct Set {
    std::vector<float> values;
    std::vector<double> inverse, center;
    Rows rows;
    double longest = 0;

    Set(Input &in, long n, long dim, int kind, bool odd) : values(in.numbers(n * dim)), inverse(n), center(dim, 0.05) {
        for (long i = 0; odd && i < n; i++)  // rows of other lengths, and some that are all zero
            for (long k = 0; k < dim; k++) values[i * dim + k] *= i % 5 == 0 ? 0.f : i % 3 == 0 ? 1e-6f : 1.f;
        rows = {values.data(), nullptr, nullptr, kind == EUCLIDEAN ? center.data() : nullptr, 1, dim};
        std::vector<double> squares(n);
        gemel_squares(&rows, 0, n, squares.data());
        for (long i = 0; i < n; i++) {
            longest = std::max(longest, std::sqrt(squares[i]));
            inverse[i] = squares[i] > 0 ? 1 / std::sqrt(squares[i]) : 0;
        }
        if (kind == PRODUCT) rows.inverse = inverse.data();
    }
};

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Input in = {data, size};
    const int kind = in.flag() ? PRODUCT : in.flag() ? EUCLIDEAN : MANHATTAN;
    const int form = kind == MANHATTAN ? GAPS : HAS_INT8 && in.flag() ? INT8 : FLOAT;
    const long n = 1 + in.upto(140), m = 1 + in.upto(200), dim = 1 + in.upto(70), k = 1 + in.upto(5);
    const bool odd = in.flag(), same = in.flag();
    const float floor = kind == PRODUCT ? in.upto(200) / 100.f - 1.f : -in.upto(100) / 10.f;
    Set left(in, n, dim, kind, odd), right(in, same ? n : m, dim, kind, odd);
    if (same) right.values = left.values, right.inverse = left.inverse, right.longest = left.longest;
    right.rows.values = right.values.data();
    const long columns = same ? n : m;
    double scale = 1 / std::max({left.longest, right.longest, 1e-30});
    if (kind == MANHATTAN) scale = 1;
    left.rows.factor = right.rows.factor = scale;
    // The slack is far wider than what the library computes: this tests sizes and completeness, not the bounds.
    Bounds bounds = {kind, form, kind == PRODUCT ? 1.0 : scale, 1e-3 * (kind == MANHATTAN ? dim : 1), 1e-5};

    long lanes = round_up(n, TILE_COLUMNS), padded = padded_dim(dim);
    std::vector<float> packed(lanes * padded), own(lanes), step(lanes);
    std::vector<int32_t> start(lanes);
    float widest;
    Block block = {&left.rows, 0, n, packed.data(), own.data(), step.data(), start.data(), &widest};
    gemel_pack_rows(&block, &bounds);

    using Pair = std::tuple<long, long, float>;
    std::vector<Pair> expected, got;
    for (long i = 0; i < n; i++)
        for (long j = same ? i + 1 : 0; j < columns; j++) {
            float score = exact_pair(kind, left.rows, i, right.rows, j);
            if (score >= floor) expected.emplace_back(i, j, score);
        }
    long room = gemel_least_room() + in.upto(100);
    std::vector<int32_t> i(room), j(room);
    std::vector<float> score(room);
    Pairs pairs = {i.data(), j.data(), score.data(), room};
    for (int64_t state[3] = {0, 0, (int64_t)in.upto(500)}; state[0] < columns; state[2] = 1000) {
        long count = gemel_pairs(&block, &right.rows, &bounds, columns, floor, same, &pairs, state);
        for (long at = 0; at < count; at++) got.emplace_back(i[at], j[at], score[at]);
    }
    std::sort(expected.begin(), expected.end());
    std::sort(got.begin(), got.end());
    if (expected != got) wrong("pairs differ from comparing every pair");

    std::vector<float> best(n * k, -INFINITY), bias(lanes, INFINITY);
    std::vector<int64_t> index(n * k), filled(n);
    Heaps heaps = {best.data(), index.data(), filled.data(), bias.data(), k};
    for (int64_t state[2] = {0, (int64_t)in.upto(500)}; state[0] < columns; state[1] = 1000)
        gemel_nearest(&block, &right.rows, &bounds, columns, &heaps, state);
    for (long row = 0; row < n; row++) {
        std::vector<std::pair<float, long>> all;
        for (long other = 0; other < columns; other++)
            all.emplace_back(-exact_pair(kind, left.rows, row, right.rows, other), other);
        std::sort(all.begin(), all.end());
        std::vector<std::pair<float, long>> kept;
        for (long at = 0; at < filled[row]; at++) kept.emplace_back(-best[row * k + at], index[row * k + at]);
        std::sort(kept.begin(), kept.end());
        all.resize(std::min<size_t>(all.size(), k));
        if (kept != all) wrong("neighbors differ from comparing every row");
    }
    return 0;
}
