// Runs the scan over odd shapes, in every form, for the compiler's sanitizers to watch: see test_scan_sanitized.py.
#include <cstdio>
#include <thread>

#include "scan.cpp"

struct Set {
    std::vector<float> values;
    std::vector<double> inverse, center;
    std::vector<int64_t> chosen;
    Rows rows;

    Set(long n, long dim, int kind, bool some) : values(n * dim), inverse(n), center(dim, 0.1) {
        for (long i = 0; i < n * dim; i++) values[i] = ((i * 7919 + n) % 1000) / 1000.f - .5f;
        for (long i = 0; some && i < n; i += 2) chosen.push_back(i);
        rows = {values.data(), some ? chosen.data() : nullptr, nullptr, kind == EUCLIDEAN ? center.data() : nullptr,
                0.01, dim};
        if (kind == PRODUCT) {
            gemel_squares(&rows, 0, n, inverse.data());
            for (double &x : inverse) x = x > 0 ? 1 / std::sqrt(x) : 0;
            rows.inverse = inverse.data();
        }
    }
    long size(long n) const { return rows.chosen ? (long)chosen.size() : n; }
};

static long run(int kind, int form, long n, long m, long dim) {
    Set left(n, dim, kind, false), right(m, dim, kind, form == FLOAT);
    Bounds bounds = {kind, form, kind == PRODUCT ? 1.0 : 0.01, 1e-4, 1e-6};
    long lanes = round_up(n, TILE_COLUMNS), padded = padded_dim(dim);
    std::vector<float> packed(lanes * padded), own(lanes), step(lanes);
    std::vector<int32_t> start(lanes);
    float widest;
    Block block = {&left.rows, 0, n, packed.data(), own.data(), step.data(), start.data(), &widest};
    gemel_pack_rows(&block, &bounds);
    long total = 0;
    right.rows.chosen = nullptr;  // pairs have no filter
    for (float floor : {-INFINITY, 0.1f, -5.0f}) {
        long room = gemel_least_room();
        std::vector<int32_t> i(room), j(room);
        std::vector<float> score(room);
        Pairs pairs = {i.data(), j.data(), score.data(), room};
        for (int64_t state[3] = {0, 0, 10}; state[0] < m; state[2] = 10)
            total += gemel_pairs(&block, &right.rows, &bounds, m, floor, n == m, &pairs, state);
    }
    if (form == FLOAT) right.rows.chosen = right.chosen.data();
    const long k = 3, count = right.size(m);
    auto search = [&] {
        std::vector<float> score(n * k, -INFINITY), bias(lanes, INFINITY);
        std::vector<int64_t> index(n * k), filled(n);
        Heaps heaps = {score.data(), index.data(), filled.data(), bias.data(), k};
        for (int64_t state[2] = {0, 10}; state[0] < count; state[1] = 10)
            gemel_nearest(&block, &right.rows, &bounds, state[0] < count / 2 ? count / 2 : count, &heaps, state);
    };
    std::thread other(search);  // threads share the packed block
    search();
    other.join();
    return total;
}

int main() {
    long total = 0;
    for (int kind : {PRODUCT, EUCLIDEAN, MANHATTAN})
        for (int form : {FLOAT, INT8, GAPS})
            if ((kind == MANHATTAN) == (form == GAPS) && (form != INT8 || HAS_INT8))
                for (long n : {1, 50, 130})
                    for (long m : {9, 130})
                        for (long dim : {1, 37}) total += run(kind, form, n, m, dim);
    std::printf("clean %ld\n", total);
}
