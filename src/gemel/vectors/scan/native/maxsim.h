// MaxSim of one query with many documents: for each token of the query its largest product with a token of the document,
// all added up.
//
// A product adds its terms in the order of the dimensions, each with one rounding (`fused`), and the largest products are
// added in float64 in the order of the query's tokens. So a score depends on its two texts only, and has the same bits on
// every level that fuses. Stored forms are first turned into float32, with the operations of `MultiVectors.of`.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <system_error>
#include <thread>
#include <vector>

#include "../../../encoder/native/vector.h"

enum TokenForm { TOKENS_FLOAT32 = 0, TOKENS_FLOAT16 = 1, TOKENS_INT8 = 2, TOKENS_2BIT = 3 };

struct Tokens {
    const void *values;      // (tokens, dim) of its form; 2-bit: (tokens, (dim + 3) / 4) bytes of four codes each
    const int64_t *offsets;  // (documents + 1)
    const void *scales;      // int8: (tokens) float32; 2-bit: (tokens) float16
    const uint16_t *nearest; // 2-bit: (tokens) the centroid of each
    const float *centroids;  // 2-bit: (centroids, dim)
    const float *weights;    // 2-bit: (4, dim) what each code adds to the centroid
    int64_t form, dim;
};

// Calls work(begin, end) for all of `count`, a few at a time, on several threads.
template <class Work>
static void in_parts(long count, long step, int threads, const Work &work) {
    std::atomic<long> next{0};
    auto take = [&] {
        for (long begin; (begin = next.fetch_add(step)) < count;) work(begin, std::min(begin + step, count));
    };
    std::vector<std::thread> helpers;
    for (int i = 1; i < threads && i * step < count; i++) {
        try {
            helpers.emplace_back(take);
        } catch (const std::system_error &) {
            break;  // no more threads available: continue with those that were started
        }
    }
    take();
    for (auto &helper : helpers) helper.join();
}

// ---- stored forms as float32 ----

typedef uint16_t HalfVec __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef int8_t ByteVec __attribute__((vector_size(LANES), aligned(1), may_alias));

static inline Vec from_half(const uint16_t *p) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#else
    IntVec h = __builtin_convertvector(*(const HalfVec *)p, IntVec);
    // The exponent of a half in the place of a float's is 112 too small; infinity and NaN need the largest there is.
    Vec value = (Vec)((h & 0x7fff) << 13) * 0x1p112f;
    value = pick((IntVec)((h & 0x7c00) == 0x7c00), (Vec)((IntVec)value | 0x7f800000), value);
    return (Vec)((IntVec)value | ((h & 0x8000) << 16));
#endif
}

static inline float from_half(uint16_t h) {
    uint16_t several[LANES] = {h};
    return from_half(several)[0];
}

static inline Vec from_bytes(const int8_t *p) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
    return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    return __builtin_convertvector(*(const ByteVec *)p, Vec);
#endif
}

// What the codes of dimensions k .. k + LANES add to the centroid.
static inline Vec from_codes(const uint8_t *codes, const float *weights, long dim, long k) {
    int32_t word = 0;
    memcpy(&word, codes + k / 4, LANES / 4);
    IntVec code = (all_int(word) >> (lane_numbers() * 2)) & 3;
    Vec low = code == 0 ? load(weights + k) : load(weights + dim + k);
    Vec high = code == 2 ? load(weights + 2 * dim + k) : load(weights + 3 * dim + k);
    return code < 2 ? low : high;
}

// The vector of one token.
static void token_vector(const Tokens &tokens, long token, float *out) {
    const long dim = tokens.dim;
    long k = 0;
    if (tokens.form == TOKENS_FLOAT16) {
        const uint16_t *x = (const uint16_t *)tokens.values + token * dim;
        for (; k + LANES <= dim; k += LANES) store(out + k, from_half(x + k));
        for (; k < dim; k++) out[k] = from_half(x[k]);
    } else if (tokens.form == TOKENS_INT8) {
        const int8_t *x = (const int8_t *)tokens.values + token * dim;
        const float scale = ((const float *)tokens.scales)[token];
        for (; k + LANES <= dim; k += LANES) store(out + k, from_bytes(x + k) * scale);
        for (; k < dim; k++) out[k] = (float)x[k] * scale;
    } else {
        const uint8_t *codes = (const uint8_t *)tokens.values + token * ((dim + 3) / 4);
        const float *center = tokens.centroids + tokens.nearest[token] * dim, *weights = tokens.weights;
        const float scale = from_half(((const uint16_t *)tokens.scales)[token]);
        for (; k + LANES <= dim; k += LANES)
            store(out + k, (load(center + k) + from_codes(codes, weights, dim, k)) * scale);
        for (; k < dim; k++) out[k] = (center[k] + weights[((codes[k / 4] >> k % 4 * 2) & 3) * dim + k]) * scale;
    }
}

// ---- products ----

#define TOKEN_ROWS 8  // tokens of a document that are compared together

// The tokens of a query side by side: panels of up to TILE_VECTORS vectors, each (dim, its lanes).
class QueryPanels {
  public:
    const long dim, tokens;

    QueryPanels(const float *query, long tokens, long dim)
        : dim(dim), tokens(tokens), vectors((tokens + LANES - 1) / LANES), panels((vectors + TILE_VECTORS - 1) / TILE_VECTORS),
          packed(vectors * LANES * dim) {
        for (long p = 0; p < panels; p++)
            for (long lane = 0; lane < width(p) * LANES; lane++)
                for (long k = 0; k < dim; k++) {
                    long token = first(p) * LANES + lane;
                    packed[first(p) * LANES * dim + k * width(p) * LANES + lane] = token < tokens ? query[token * dim + k] : 0;
                }
    }

    long lanes() const { return vectors * LANES; }

    // Calls take(vector, row, products) with the products of `count` rows and each vector of the query's tokens.
    template <class Take>
    void multiply(const float *rows, long stride, long count, const Take &take) const {
        for (long p = 0; p < panels; p++) {
            const float *columns = packed.data() + first(p) * LANES * dim;
            long row = 0;
            for (; row + TOKEN_ROWS <= count; row += TOKEN_ROWS) by_width<TOKEN_ROWS>(rows, stride, columns, p, row, take);
            for (; row + 4 <= count; row += 4) by_width<4>(rows, stride, columns, p, row, take);
            for (; row < count; row++) by_width<1>(rows, stride, columns, p, row, take);
        }
    }

  private:
    const long vectors, panels;
    std::vector<float> packed;

    long first(long panel) const { return panel * vectors / panels; }
    long width(long panel) const { return first(panel + 1) - first(panel); }

    template <int ROWS, class Take>
    void by_width(const float *rows, long stride, const float *columns, long p, long row, const Take &take) const {
        switch (width(p)) {
            case 1: tile<ROWS, 1>(rows + row * stride, stride, columns, first(p), row, take); break;
            case 2: tile<ROWS, 2>(rows + row * stride, stride, columns, first(p), row, take); break;
            default: tile<ROWS, TILE_VECTORS>(rows + row * stride, stride, columns, first(p), row, take); break;
        }
    }

    template <int ROWS, int VECTORS, class Take>
    void tile(const float *a, long stride, const float *b, long vector, long row, const Take &take) const {
        Vec sum[ROWS][VECTORS];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) sum[r][v] = all(0.0f);
        for (long k = 0; k < dim; k++, b += VECTORS * LANES) {
            Vec column[VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) column[v] = load(b + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                Vec x = all(a[r * stride + k]);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) sum[r][v] = fused(x, column[v], sum[r][v]);
            }
        }
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) take(vector + v, row + r, sum[r][v]);
    }
};

// ---- scores ----

#define DECODED_ROWS 32  // tokens that are turned into float32 at once: they stay in the first-level cache

class DocumentScores {
  public:
    DocumentScores(const QueryPanels &query, const Tokens &tokens)
        : query(query), tokens(tokens), best(query.lanes()), decoded(tokens.form == TOKENS_FLOAT32 ? 0 : DECODED_ROWS * query.dim) {}

    float score(long document) {
        long begin = tokens.offsets[document], end = tokens.offsets[document + 1];
        if (begin == end) return -INFINITY;
        std::fill(best.begin(), best.end(), -INFINITY);
        auto raise = [this](long vector, long row, Vec products) {
            (void)row;
            float *own = best.data() + vector * LANES;
            store(own, larger(products, load(own)));
        };
        if (tokens.form == TOKENS_FLOAT32) {
            query.multiply((const float *)tokens.values + begin * query.dim, query.dim, end - begin, raise);
        } else {
            for (; begin < end; begin += DECODED_ROWS) {
                long count = std::min<long>(DECODED_ROWS, end - begin);
                for (long r = 0; r < count; r++) token_vector(tokens, begin + r, decoded.data() + r * query.dim);
                query.multiply(decoded.data(), query.dim, count, raise);
            }
        }
        double sum = 0;
        for (long token = 0; token < query.tokens; token++) sum += best[token];
        return (float)sum + 0.0f;  // one zero: -0 becomes 0
    }

  private:
    const QueryPanels &query;
    const Tokens &tokens;
    std::vector<float> best, decoded;
};

static void maxsim(const float *query, long query_tokens, const Tokens &tokens, const int64_t *chosen, long count,
                   int threads, float *out) {
    const QueryPanels panels(query, query_tokens, tokens.dim);
    in_parts(count, 8, threads, [&](long begin, long end) {
        DocumentScores scores(panels, tokens);
        for (; begin < end; begin++) out[begin] = scores.score(chosen ? chosen[begin] : begin);
    });
}

// ---- the nearest centroid of each token ----

// Centroids in groups around heads: only those of the groups with the nearest heads are compared.
struct CentroidGroups {
    const float *heads;      // (groups, dim)
    const float *centroids;  // (count, dim), group by group
    const int64_t *offsets;  // (groups + 1)
    const int32_t *numbers;  // (count) what the caller calls them
    int64_t groups, dim;
};

#define MOST_PROBES 16

// Vectors side by side, which are compared by their distance: x y - y y / 2 is largest for the nearest y.
class NearestPanels {
  public:
    NearestPanels(const float *vectors, long count, long dim) : panels(vectors, count, dim), halves(panels.lanes()) {
        for (long i = 0; i < count; i++) {
            double sum = 0;
            for (long k = 0; k < dim; k++) sum += (double)vectors[i * dim + k] * vectors[i * dim + k];
            halves[i] = (float)(sum / 2);
        }
    }

    // values (count): x y - y y / 2
    void compare(const float *x, float *values) const {
        panels.multiply(x, panels.dim, 1, [&](long vector, long, Vec products) {
            store(values + vector * LANES, products - load(halves.data() + vector * LANES));
        });
    }

    long count() const { return panels.tokens; }
    long lanes() const { return panels.lanes(); }

  private:
    QueryPanels panels;
    std::vector<float> halves;
};

static void nearest_centroids(const CentroidGroups &groups, const float *tokens, long count, long probes, int threads,
                              uint16_t *out) {
    const NearestPanels heads(groups.heads, groups.groups, groups.dim);
    std::vector<NearestPanels> members;
    long widest = heads.lanes();
    for (long g = 0; g < groups.groups; g++) {
        members.emplace_back(groups.centroids + groups.offsets[g] * groups.dim, groups.offsets[g + 1] - groups.offsets[g], groups.dim);
        widest = std::max(widest, members.back().lanes());
    }
    probes = std::min<long>(std::min<long>(probes, MOST_PROBES), groups.groups);
    in_parts(count, 256, threads, [&](long begin, long end) {
        std::vector<float> values(widest);
        for (; begin < end; begin++) {
            const float *x = tokens + begin * groups.dim;
            heads.compare(x, values.data());
            long chosen[MOST_PROBES];
            for (long p = 0; p < probes; p++) {
                long best = 0;
                for (long g = 1; g < heads.count(); g++)
                    if (values[g] > values[best]) best = g;
                chosen[p] = best;
                values[best] = -INFINITY;
            }
            float most = -INFINITY;
            int32_t nearest = groups.numbers[groups.offsets[chosen[0]]];
            for (long p = 0; p < probes; p++) {
                const NearestPanels &group = members[chosen[p]];
                group.compare(x, values.data());
                for (long i = 0; i < group.count(); i++) {
                    int32_t number = groups.numbers[groups.offsets[chosen[p]] + i];
                    if (values[i] > most || (values[i] == most && number < nearest)) {
                        most = values[i];
                        nearest = number;
                    }
                }
            }
            out[begin] = (uint16_t)nearest;
        }
    });
}

// ---- candidates from centroids ----

// Tokens are grouped around centroids, and a document is described by those of its tokens.
struct CentroidCodes {
    const float *centroids;  // (count, dim)
    const int64_t *offsets;  // (documents + 1)
    const uint16_t *codes;   // centroids of each document, each once
    int64_t count, dim;
};

#define TABLE_STEP 32  // the width of a table is a multiple of it

// The products of centroids and the tokens of a query in 256 steps, above the least of each token: (centroids, width).
// One row says how near a centroid is to every token of the query, and 32 tokens are compared at once.
class ProductTable {
  public:
    ProductTable(const QueryPanels &query, const CentroidCodes &codes, int threads)
        : width((query.tokens + TABLE_STEP - 1) / TABLE_STEP * TABLE_STEP), steps(codes.count * width) {
        const long lanes = query.lanes();
        std::vector<float> products(codes.count * lanes), least(lanes, INFINITY), most(lanes, -INFINITY);
        in_parts(codes.count, 256, threads, [&](long begin, long end) {
            query.multiply(codes.centroids + begin * codes.dim, codes.dim, end - begin, [&](long vector, long row, Vec value) {
                store(products.data() + (begin + row) * lanes + vector * LANES, value);
            });
        });
        for (long c = 0; c < codes.count; c++)
            for (long lane = 0; lane < lanes; lane += LANES) {
                Vec value = load(products.data() + c * lanes + lane);
                store(least.data() + lane, smaller(load(least.data() + lane), value));
                store(most.data() + lane, larger(load(most.data() + lane), value));
            }
        float range = 0;
        for (long token = 0; token < query.tokens; token++) range = std::max(range, most[token] - least[token]);
        const float factor = range > 0 ? 255.0f / range : 0;
        in_parts(codes.count, 1024, threads, [&](long begin, long end) {
            for (long c = begin; c < end; c++)
                for (long token = 0; token < query.tokens; token++)
                    steps[c * width + token] = (uint8_t)(int)((products[c * lanes + token] - least[token]) * factor + 0.5f);
        });
    }

    // The sum over the query's tokens of the most steps of a document's centroids.
    int32_t score(const uint16_t *codes, long count) const {
        int32_t sum = 0;
        for (long column = 0; column < width; column += TABLE_STEP) {
            Bytes best = {};
            for (long at = 0; at < count; at++) raise(best, steps.data() + codes[at] * width + column);
            for (int i = 0; i < TABLE_STEP; i++) sum += best[i];
        }
        return sum;
    }

  private:
    typedef uint8_t Bytes __attribute__((vector_size(TABLE_STEP)));
    typedef uint8_t LooseBytes __attribute__((vector_size(TABLE_STEP), aligned(1), may_alias));

    const long width;
    std::vector<uint8_t> steps;

    static inline void raise(Bytes &best, const uint8_t *other) {
#if defined(__AVX2__)
        best = (Bytes)_mm256_max_epu8((__m256i)best, _mm256_loadu_si256((const __m256i *)other));
#else
        const Bytes own = *(const LooseBytes *)other;
        best = best > own ? best : own;
#endif
    }
};

static void centroid_scores(const float *query, long query_tokens, const CentroidCodes &codes, const int64_t *chosen, long count,
                            int threads, int32_t *out) {
    const QueryPanels panels(query, query_tokens, codes.dim);
    const ProductTable table(panels, codes, threads);
    in_parts(count, 512, threads, [&](long begin, long end) {
        for (; begin < end; begin++) {
            long document = chosen ? chosen[begin] : begin, at = codes.offsets[document];
            out[begin] = table.score(codes.codes + at, codes.offsets[document + 1] - at);
        }
    });
}
