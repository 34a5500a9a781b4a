// MaxSim of one query with many documents: for each token of the query its largest product with a token of the document,
// all added up.
//
// A product adds its terms in the order of the dimensions, each with one rounding (`fused`), and the largest products are
// added in float64 in the order of the query's tokens. So a score depends on its two texts only, and has the same bits on
// every level that fuses. Stored forms are first turned into float32, with the operations of `MultiVectors.of`.
//
// int8 is compared as integers instead, twice as many at once: the numbers of a query's token are rounded to 16 bits, with
// a step for each token. Sums of integers are exact, and the three roundings after them are the same everywhere: these
// scores have the same bits on every level, and in NumPy (`_int8_score` of maxsim.py).
#pragma once
#include <cmath>
#include <memory>

#include "../../../encoder/native/vector.h"
#include "parts.h"

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

// ---- stored forms as float32 ----

typedef uint16_t HalfVec __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

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

// What the codes of dimensions k .. k + LANES add to the centroid.
static inline Vec from_codes(const uint8_t *codes, const float *weights, long dim, long k) {
    int32_t word = 0;
    memcpy(&word, codes + k / 4, LANES / 4);
    const IntVec both = all_int(word), first = all_int(1) << (lane_numbers() * 2);
    const IntVec odd = (both & first) != 0, upper = (both & (first << 1)) != 0;
    Vec low = odd ? load(weights + dim + k) : load(weights + k);
    Vec high = odd ? load(weights + 3 * dim + k) : load(weights + 2 * dim + k);
    return upper ? high : low;
}

// The vector of one token.
static void token_vector(const Tokens &tokens, long token, float *out) {
    const long dim = tokens.dim;
    long k = 0;
    if (tokens.form == TOKENS_FLOAT16) {
        const uint16_t *x = (const uint16_t *)tokens.values + token * dim;
        for (; k + LANES <= dim; k += LANES) store(out + k, from_half(x + k));
        for (; k < dim; k++) out[k] = from_half(x[k]);
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

#if defined(__AVX512F__) || defined(__aarch64__)
#define REGISTERS 32
#else
#define REGISTERS 16
#endif

// Tokens of a document that are compared with `vectors` vectors of a query's tokens at once: sums, columns and one number
// fill the registers.
static constexpr int tile_rows(int vectors) { return std::min(12, (REGISTERS - 1 - vectors) / vectors); }

// Calls step(size, row) with `size`, at most SIZE, as a constant of the compiler.
template <int SIZE, class Step>
static inline void one_size(long size, long row, const Step &step) {
    if (size == SIZE) return step(std::integral_constant<int, SIZE>(), row);
    if constexpr (SIZE > 1) one_size<SIZE - 1>(size, row, step);
}

// Calls step(size, row) for tiles of at most MOST rows, all nearly equal: a tile of one or two rows would wait for
// its own sums.
template <int MOST, class Step>
static inline void in_tiles(long rows, const Step &step) {
    const long tiles = (rows + MOST - 1) / MOST;
    for (long tile = 0, row = 0, end; tile < tiles; tile++, row = end) {
        end = (tile + 1) * rows / tiles;
        one_size<MOST>(end - row, row, step);
    }
}

#define DECODED_ROWS 48  // tokens that are turned into another form at once: they stay in the first-level cache

// Calls step(row, rows) for rows from `begin` on, in blocks of at most DECODED_ROWS that are nearly equal.
template <class Step>
static inline void in_blocks(long begin, long count, const Step &step) {
    const long blocks = (count + DECODED_ROWS - 1) / DECODED_ROWS;
    for (long block = 0, row = 0, end; block < blocks; block++, row = end) {
        end = (block + 1) * count / blocks;
        step(begin + row, end - row);
    }
}

// Tokens of a query side by side in the lanes of vectors, in panels of up to TILE_VECTORS of them.
class Panels {
  public:
    const long dim, tokens;

    Panels(long tokens, long dim)
        : dim(dim), tokens(tokens), vectors((tokens + LANES - 1) / LANES), panels((vectors + TILE_VECTORS - 1) / TILE_VECTORS) {}

    long lanes() const { return vectors * LANES; }

  protected:
    const long vectors, panels;

    long first(long panel) const { return panel * vectors / panels; }
    long width(long panel) const { return first(panel + 1) - first(panel); }

    // Calls step(width, panel) for each panel, with its width as a constant of the compiler.
    template <class Step>
    void each_panel(const Step &step) const {
        for (long p = 0; p < panels; p++) switch (width(p)) {
                case 1: step(std::integral_constant<int, 1>(), p); break;
                case 2: step(std::integral_constant<int, 2>(), p); break;
                default: step(std::integral_constant<int, TILE_VECTORS>(), p); break;
            }
    }

    // Raises `best` (lanes) to the largest products with `count` rows: products(panel, row, sums) are those of a tile,
    // value(sum, row) is a number to compare.
    template <class Number, class Products, class Value>
    void raise_to(float *best, long count, const Products &products, const Value &value) const {
        each_panel([&](auto width, long p) {
            constexpr int VECTORS = decltype(width)::value;
            Vec most[VECTORS];
            for (int v = 0; v < VECTORS; v++) most[v] = load(best + (first(p) + v) * LANES);
            in_tiles<tile_rows(VECTORS)>(count, [&](auto size, long row) {
                constexpr int ROWS = decltype(size)::value;
                Number sum[ROWS][VECTORS];
                products(p, row, sum);
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
                    for (int v = 0; v < VECTORS; v++) most[v] = larger(value(sum[r][v], row + r), most[v]);
            });
            for (int v = 0; v < VECTORS; v++) store(best + (first(p) + v) * LANES, most[v]);
        });
    }

    // Calls put(to, token, k) for each number of the panels, `steps` for each token: to is where it belongs.
    template <class Put>
    void pack(long steps, const Put &put) const {
        for (long p = 0; p < panels; p++) {
            const long begin = first(p) * LANES, lanes = width(p) * LANES;
            for (long lane = 0; lane < std::min(lanes, tokens - begin); lane++)
                for (long k = 0; k < steps; k++) put(begin * steps + k * lanes + lane, begin + lane, k);
        }
    }
};

class QueryPanels : public Panels {
  public:
    QueryPanels(const float *query, long tokens, long dim) : Panels(tokens, dim), packed(lanes() * dim) {
        pack(dim, [&](long to, long token, long k) { packed[to] = query[token * dim + k]; });
    }

    // Calls take(vector, row, products) with the products of `count` rows and each vector of the query's tokens.
    template <int MOST, class Take>
    void multiply(const float *rows, long count, const Take &take) const {
        each_panel([&](auto width, long p) {
            constexpr int VECTORS = decltype(width)::value;
            in_tiles<std::min(MOST, tile_rows(VECTORS))>(count, [&](auto size, long row) {
                constexpr int ROWS = decltype(size)::value;
                Vec sum[ROWS][VECTORS];
                tile(rows + row * dim, columns(p), sum);
                for (int v = 0; v < VECTORS; v++)
                    for (int r = 0; r < ROWS; r++) take(first(p) + v, row + r, sum[r][v]);
            });
        });
    }

    typedef std::unique_ptr<float[]> Buffer;  // of decoded tokens

    Buffer buffer(const Tokens &tokens) const {
        return Buffer(tokens.form == TOKENS_FLOAT32 ? nullptr : new float[DECODED_ROWS * dim]);
    }

    // Raises `best` (lanes) to the largest products with tokens from `begin` on.
    void raise(const Tokens &tokens, long begin, long count, const Buffer &decoded, float *best) const {
        auto raise_rows = [&](const float *rows, long several) {
            raise_to<Vec>(
                best, several, [&](long p, long row, auto &sum) { tile(rows + row * dim, columns(p), sum); },
                [](Vec product, long) { return product; });
        };
        if (tokens.form == TOKENS_FLOAT32) return raise_rows((const float *)tokens.values + begin * dim, count);
        in_blocks(begin, count, [&](long row, long several) {
            for (long r = 0; r < several; r++) token_vector(tokens, row + r, decoded.get() + r * dim);
            raise_rows(decoded.get(), several);
        });
    }

    float step(long) const { return 1; }

  private:
    std::vector<float> packed;

    const float *columns(long p) const { return packed.data() + first(p) * LANES * dim; }

    template <int ROWS, int VECTORS>
    inline void tile(const float *a, const float *b, Vec (&sum)[ROWS][VECTORS]) const {
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) sum[r][v] = all(0.0f);
        for (long k = 0; k < dim; k++, b += VECTORS * LANES) {
            Vec column[VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) column[v] = load(b + v * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                Vec x = all(a[r * dim + k]);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) sum[r][v] = fused(x, column[v], sum[r][v]);
            }
        }
    }
};

// ---- products of integers ----

// Adds the products of two pairs of 16-bit integers to each lane.
static inline IntVec add_pairs(IntVec sum, IntVec a, IntVec b) {
#if defined(__AVX512VNNI__)
    return (IntVec)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sum + (IntVec)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return sum + (IntVec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return sum + (IntVec)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// The tokens of a query as integers, two dimensions in each lane: a number is its integer times the step of its token.
class QueryIntegers : public Panels {
  public:
    const long pairs;

    QueryIntegers(const float *query, long tokens, long dim)
        : Panels(tokens, dim), pairs((dim + 1) / 2), steps(lanes()), packed(lanes() * pairs) {
        const float most = (float)most_integer(dim);
        std::vector<float> factors(tokens);
        for (long token = 0; token < tokens; token++) {
            float largest = 0;
            for (long k = 0; k < dim; k++) largest = std::max(largest, std::fabs(query[token * dim + k]));
            if (largest < LEAST) continue;
            steps[token] = largest / most;
            factors[token] = most / largest;
        }
        pack(pairs, [&](long to, long token, long pair) {
            const float *x = query + token * dim + 2 * pair;
            const long even = lrintf(x[0] * factors[token]), odd = 2 * pair + 1 < dim ? lrintf(x[1] * factors[token]) : 0;
            packed[to] = (int32_t)((uint32_t)odd << 16 | ((uint32_t)even & 0xffff));
        });
    }

    typedef std::unique_ptr<int16_t[]> Buffer;  // of tokens in 16 bits

    Buffer buffer(const Tokens &) const { return Buffer(new int16_t[DECODED_ROWS * 2 * pairs]); }

    // Raises `best` (lanes) to the largest products with tokens from `begin` on, in units of the steps.
    void raise(const Tokens &tokens, long begin, long count, const Buffer &wide, float *best) const {
        in_blocks(begin, count, [&](long first_row, long several) {
            const int8_t *rows = (const int8_t *)tokens.values + first_row * dim;
            const float *scales = (const float *)tokens.scales + first_row;
            for (long r = 0; r < several; r++) widen(rows + r * dim, wide.get() + r * 2 * pairs);
            raise_to<IntVec>(
                best, several, [&](long p, long row, auto &sum) { tile(wide.get() + row * 2 * pairs, columns(p), sum); },
                [&](IntVec sum, long row) { return __builtin_convertvector(sum, Vec) * scales[row]; });
        });
    }

    float step(long token) const { return steps[token]; }

  private:
    static constexpr float LEAST = 1e-30f;  // tokens whose numbers are all smaller count as zero

    std::vector<float> steps;
    std::vector<int32_t> packed;

    // The largest integer with which no sum of products with 8-bit integers exceeds 32 bits.
    static long most_integer(long dim) { return std::clamp<long>(((1 << 24) - 1) / std::max<long>(1, dim), 1, 32767); }

    const int32_t *columns(long p) const { return packed.data() + first(p) * LANES * pairs; }

    void widen(const int8_t *x, int16_t *out) const {
        for (long k = 0; k < dim; k++) out[k] = x[k];
        if (dim % 2) out[dim] = 0;
    }

    template <int ROWS, int VECTORS>
    inline void tile(const int16_t *a, const int32_t *b, IntVec (&sum)[ROWS][VECTORS]) const {
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) sum[r][v] = all_int(0);
        for (long pair = 0; pair < pairs; pair++, b += VECTORS * LANES) {
            IntVec column[VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) column[v] = *(const LooseIntVec *)(b + v * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                int32_t two;
                memcpy(&two, a + 2 * (r * pairs + pair), 4);
                const IntVec x = all_int(two);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) sum[r][v] = add_pairs(sum[r][v], x, column[v]);
            }
        }
    }
};

// ---- scores ----

// Query: QueryPanels or QueryIntegers.
template <class Query>
static void score_documents(const Query &query, const Tokens &tokens, const int64_t *chosen, long count, int threads, float *out) {
    const long step = std::max<long>(1, std::min<long>(32, count / (32L * threads)));
    in_parts(count, step, threads, [&](long begin, long end) {
        std::vector<float> best(query.lanes());
        const typename Query::Buffer buffer = query.buffer(tokens);
        for (; begin < end; begin++) {
            const long document = chosen ? chosen[begin] : begin;
            const long row = tokens.offsets[document], rows = tokens.offsets[document + 1] - row;
            std::fill(best.begin(), best.end(), -INFINITY);
            query.raise(tokens, row, rows, buffer, best.data());
            double sum = 0;
            for (long token = 0; token < query.tokens; token++) sum += best[token] * query.step(token);
            out[begin] = rows ? (float)sum + 0.0f : -INFINITY;  // one zero: -0 becomes 0
        }
    });
}

static void maxsim(const float *query, long query_tokens, const Tokens &tokens, const int64_t *chosen, long count,
                   int threads, float *out) {
    if (tokens.form == TOKENS_INT8)
        score_documents(QueryIntegers(query, query_tokens, tokens.dim), tokens, chosen, count, threads, out);
    else
        score_documents(QueryPanels(query, query_tokens, tokens.dim), tokens, chosen, count, threads, out);
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
        panels.multiply<1>(x, 1, [&](long vector, long, Vec products) {
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
            query.multiply<8>(codes.centroids + begin * codes.dim, end - begin, [&](long vector, long row, Vec value) {
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
