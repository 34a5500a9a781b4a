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

// An inverted file of `count` rows, of which column 0 is in all, the others in fewer and fewer; exact sizes.
static long run_inverted(long count, long columns, long shift) {
    long windows = (count + WINDOW - 1) / WINDOW, blocks = WINDOW >> shift;
    std::vector<int64_t> starts;
    std::vector<uint16_t> rows, block_starts;
    std::vector<float> weights, tops;
    std::vector<int32_t> tables;
    std::vector<uint8_t> block_tops;
    for (long window = 0; window < windows; window++) {
        for (long column = 0; column < columns; column++) {
            starts.push_back(rows.size());
            tables.push_back(column % 2 ? -1 : (int32_t)(block_tops.size() / blocks));
            tops.push_back(1);
            for (long row = 0; row < WINDOW && window * WINDOW + row < count; row++) {
                if (column % 2 == 0 && (row & ((1 << shift) - 1)) == 0) block_starts.push_back(rows.size() - starts.back());
                if (row % (column + 1) == 0) {
                    rows.push_back(row);
                    weights.push_back((1 + row * 7919 % 1000) / 1000.f);
                }
            }
            if (column % 2) continue;
            block_tops.resize(block_tops.size() + blocks, 255);
            block_starts.resize(block_tops.size(), (uint16_t)(rows.size() - starts.back()));
        }
        starts.push_back(rows.size());
    }
    Inverted file = {starts.data(), rows.data(), weights.data(), tables.data(), tops.data(), block_starts.data(),
                     block_tops.data(), count, columns, shift};
    std::vector<uint8_t> inside(count, 1);
    for (long i = 0; i < count; i += 3) inside[i] = 0;
    std::vector<int32_t> ids;
    std::vector<float> values(columns, .5f);
    for (long i = 0; i < columns; i++) ids.push_back(i);
    long total = 0;
    for (long k : {1L, 10L, count})
        for (const uint8_t *mask : {(const uint8_t *)nullptr, (const uint8_t *)inside.data()}) {
            SparseQuery query = {ids.data(), values.data(), columns, mask};
            std::vector<double> sums(WINDOW), others(WINDOW);
            std::vector<int64_t> found(k), again(k);
            std::vector<float> scores(k), same(k);
            long n = gemel_inverted(&file, &query, k, 0, 0, sums.data(), found.data(), scores.data());
            std::thread other([&] {
                if (gemel_inverted(&file, &query, k, 1, 0, others.data(), again.data(), same.data()) != n) std::abort();
            });
            other.join();
            if (found != again || scores != same) std::abort();
            total += n;
        }
    return total;
}

// MaxSim of every form, centroids of tokens and scores by them, on two threads; all arrays are exactly as long as they say.
static void run_late(long dim, long query_tokens) {
    const long lengths[] = {0, 1, 5, 101, 49}, codes_of_document = 3, centroids = 70;
    std::vector<int64_t> offsets = {0}, code_offsets = {0}, chosen = {4, 0, 3};
    for (long length : lengths) {
        offsets.push_back(offsets.back() + length);
        code_offsets.push_back(code_offsets.back() + codes_of_document);
    }
    const long tokens = offsets.back();
    std::vector<float> values(tokens * dim, 0.25f), scales(tokens, 0.5f), centers(centroids * dim, 0.125f), weights(4 * dim, 0.1f);
    std::vector<float> query(query_tokens * dim, -0.5f);
    std::vector<uint16_t> halves(tokens * dim, 0x3400), nearest(tokens, 2), small(tokens, 0x3c00), codes(15, centroids - 1);
    std::vector<int8_t> bytes(tokens * dim, -128);
    std::vector<uint8_t> packed(tokens * ((dim + 3) / 4), 0x1b);
    const Tokens forms[] = {
        {values.data(), offsets.data(), nullptr, nullptr, nullptr, nullptr, TOKENS_FLOAT32, dim},
        {halves.data(), offsets.data(), nullptr, nullptr, nullptr, nullptr, TOKENS_FLOAT16, dim},
        {bytes.data(), offsets.data(), scales.data(), nullptr, nullptr, nullptr, TOKENS_INT8, dim},
        {packed.data(), offsets.data(), small.data(), nearest.data(), centers.data(), weights.data(), TOKENS_2BIT, dim},
    };
    auto compare = [&] {  // calls at once share the waiting threads
        std::vector<float> own(5);
        for (const Tokens &form : forms) {
            gemel_maxsim(query.data(), query_tokens, &form, nullptr, 5, 3, own.data());
            gemel_maxsim(query.data(), query_tokens, &form, chosen.data(), 3, 2, own.data());
        }
    };
    std::thread other(compare);
    compare();
    other.join();
    std::vector<int64_t> groups = {0, 10, 11, 70};
    std::vector<int32_t> numbers(centroids);
    for (long i = 0; i < centroids; i++) numbers[i] = (int32_t)(centroids - 1 - i);
    const CentroidGroups grouped = {centers.data(), centers.data(), groups.data(), numbers.data(), 3, dim};
    gemel_nearest_centroids(&grouped, values.data(), tokens, 2, 2, nearest.data());
    const CentroidCodes described = {centers.data(), code_offsets.data(), codes.data(), centroids, dim};
    std::vector<int32_t> scores(5);
    gemel_centroid_scores(query.data(), query_tokens, &described, nullptr, 5, 2, scores.data());
    gemel_centroid_scores(query.data(), query_tokens, &described, chosen.data(), 3, 2, scores.data());
}

int main() {
    long total = 0;
    for (long count : {1L, 1000L, WINDOW + 5}) total += run_inverted(count, 9, 4);
    for (long dim : {1, 37, 64})
        for (long query_tokens : {1, 32, 70}) run_late(dim, query_tokens);
    for (int kind : {PRODUCT, EUCLIDEAN, MANHATTAN})
        for (int form : {FLOAT, INT8, GAPS})
            if ((kind == MANHATTAN) == (form == GAPS) && (form != INT8 || HAS_INT8))
                for (long n : {1, 50, 130})
                    for (long m : {9, 130})
                        for (long dim : {1, 37}) total += run(kind, form, n, m, dim);
    std::printf("clean %ld\n", total);
}
