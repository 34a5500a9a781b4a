// The pairs of rows whose score reaches a floor. Tiles of cheap sums rule most pairs out; exact.h scores the rest, so the
// result has the same bits whatever the tile, the form of the sums, the thread or the processor.
#include <vector>

#include "../../../encoder/native/processor.h"
#include "block.h"
#include "maxsim.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#include "inverted.h"

static const long STREAM_ROWS = 64;  // streaming rows prepared together: they stay in the second-level cache

// Streaming rows in the form that tiles read.
class StreamBuffer {
  public:
    StreamBuffer(const Rows &rows, const Bounds &bounds, const Block &block)
        : rows(rows), bounds(bounds), padded(padded_dim(rows.dim)), widest(*block.widest),
          values(STREAM_ROWS * padded), small(bounds.form == INT8 ? STREAM_ROWS * padded : 0) {}

    // Rows `begin` .. `end`: a sum with its bias must reach `base`.
    Stream make(long begin, long end, float base) {
        for (long r = 0; r < STREAM_ROWS; r++) {
            limit[r] = INFINITY;
            step[r] = 0;
            if (begin + r >= end) continue;
            float *scaled = values.data() + r * padded, error = 0;
            scale_row(rows, rows.position(begin + r), scaled, padded);
            if (bounds.form == INT8) error = to_int8(scaled, padded, small.data() + r * padded, step + r);
            // x y = x' y' + (x - x') y' + x (y - y'): all after x' y' is bounded by the errors of x and y
            limit[r] = base - row_bias(bounds, scaled, padded, error * (1.0f + widest));
        }
        return {values.data(), small.data(), limit, step, padded};
    }

  private:
    const Rows &rows;
    const Bounds &bounds;
    long padded;
    float widest;
    std::vector<float> values;
    std::vector<uint8_t> small;
    float limit[STREAM_ROWS], step[STREAM_ROWS];
};

template <class Take>
static void by_form(int form, const Panel &panel, const Stream &stream, long rows, Take &take) {
    rows = round_up(rows, TILE_ROWS);
    if (form == FLOAT) panel_by_rows<FLOAT>(panel, stream, rows, take);
    if (form == INT8) panel_by_rows<INT8>(panel, stream, rows, take);
    if (form == GAPS) panel_by_rows<GAPS>(panel, stream, rows, take);
}

// ---- all pairs that reach one floor ----

struct Pairs {
    int32_t *left, *right;
    float *score;
    int64_t room;
};

struct PairTake {
    const Block &block;
    const Rows &right;
    Pairs pairs;
    bool triangle;
    int64_t *patience;  // pairs that may still be scored without success
    long lane_begin, lane_count, row_begin, row_count, scored, count;

    void operator()(long lane, long row) {
        if (lane >= lane_count || row >= row_count) return;
        long i = lane_begin + lane, j = row_begin + row;
        if (triangle && j <= i) return;
        pairs.left[count] = (int32_t)i;
        pairs.right[count++] = (int32_t)j;
    }

    // Score the candidates exactly; drop those below the floor.
    void score_candidates(int kind, float floor) {
        for (long at = scored; at < count; at++) {
            long i = pairs.left[at], j = pairs.right[at];
            float score = exact_pair(kind, *block.rows, i, right, j);
            if (!(score >= floor)) {
                --*patience;
                continue;
            }
            pairs.left[scored] = (int32_t)i;
            pairs.right[scored] = (int32_t)j;
            pairs.score[scored++] = score;
        }
        count = scored;
    }
};

// Pairs of the block with right rows `state[0]` .. `end`, from panel `state[1]` on. Stops early when `pairs` is full, or
// when more than `state[2]` candidates were scored without success; `state` then says where to continue.
// Returns the number of pairs.
EXPORT int64_t gemel_pairs(const Block *block, const Rows *right, const Bounds *bounds, int64_t end, float floor,
                              int triangle, const Pairs *pairs, int64_t *state) {
    StreamBuffer buffer(*right, *bounds, *block);
    PairTake take = {*block, *right, *pairs, triangle != 0, state + 2, 0, 0, 0, 0, 0, 0};
    const float base = bounds->limit(floor);
    for (; state[0] < end; state[0] += STREAM_ROWS, state[1] = 0) {
        long last = std::min<long>(state[0] + STREAM_ROWS, end);
        Stream stream = buffer.make(state[0], last, base);
        take.row_begin = state[0];
        take.row_count = last - state[0];
        for (; state[1] < block->panels(); state[1]++) {
            take.lane_begin = block->begin + state[1] * TILE_COLUMNS;
            take.lane_count = block->lanes(state[1]);
            if (triangle && last - 1 <= take.lane_begin) break;
            if (take.count + STREAM_ROWS * TILE_COLUMNS > pairs->room) {
                take.score_candidates((int)bounds->kind, floor);
                if (state[2] < 0 || take.count + STREAM_ROWS * TILE_COLUMNS > pairs->room) return take.count;
            }
            by_form((int)bounds->form, block->panel(state[1], (int)bounds->form, block->own), stream, last - state[0], take);
        }
    }
    take.score_candidates((int)bounds->kind, floor);
    return take.count;
}

// ---- the k best of every lane ----

struct Heaps {       // (lanes, k), the worst of each lane first
    float *score;
    int64_t *index;
    int64_t *filled;
    float *bias;     // per lane: its own, less the limit that its worst sets; infinite until it has k
    int64_t k;
};

struct HeapTake {
    const Block &block;
    const Rows &corpus;
    const Bounds &bounds;
    Heaps heaps;
    int64_t *patience;
    long lane_begin, lane_count, row_begin, row_count;

    static bool worse(float a, int64_t i, float b, int64_t j) { return a < b || (a == b && i > j); }

    void operator()(long lane, long row) {
        if (lane >= lane_count || row >= row_count) return;
        long at = lane_begin + lane, k = heaps.k;
        int64_t position = corpus.position(row_begin + row);
        long query = block.rows->position(block.begin + at);
        float score = exact_pair((int)bounds.kind, *block.rows, query, corpus, position);
        float *scores = heaps.score + at * k;
        int64_t *indices = heaps.index + at * k;
        if (heaps.filled[at] < k) {
            rise(scores, indices, heaps.filled[at]++, score, position);
            if (heaps.filled[at] < k) return;
        } else {
            if (!worse(scores[0], indices[0], score, position)) {
                --*patience;
                return;
            }
            sink(scores, indices, k, score, position);
        }
        heaps.bias[at] = block.own[at] - bounds.limit(scores[0]);
    }

    static void rise(float *scores, int64_t *indices, long at, float score, int64_t index) {
        for (long up; at && (up = (at - 1) / 2, worse(score, index, scores[up], indices[up])); at = up) {
            scores[at] = scores[up];
            indices[at] = indices[up];
        }
        scores[at] = score;
        indices[at] = index;
    }

    static void sink(float *scores, int64_t *indices, long k, float score, int64_t index) {
        long at = 0;
        for (long down; (down = 2 * at + 1) < k; at = down) {
            if (down + 1 < k && worse(scores[down + 1], indices[down + 1], scores[down], indices[down])) down++;
            if (!worse(scores[down], indices[down], score, index)) break;
            scores[at] = scores[down];
            indices[at] = indices[down];
        }
        scores[at] = score;
        indices[at] = index;
    }
};

// Corpus rows `state[0]` .. `end` against every lane of the block. Stops early when more than `state[1]` candidates were
// scored without success; `state[0]` then says where to continue.
EXPORT void gemel_nearest(const Block *block, const Rows *corpus, const Bounds *bounds, int64_t end, const Heaps *heaps,
                             int64_t *state) {
    StreamBuffer buffer(*corpus, *bounds, *block);
    HeapTake take = {*block, *corpus, *bounds, *heaps, state + 1, 0, 0, 0, 0};
    for (; state[0] < end && state[1] >= 0; state[0] += STREAM_ROWS) {
        long begin = state[0], last = std::min<long>(begin + STREAM_ROWS, end);
        Stream stream = buffer.make(begin, last, 0.0f);
        take.row_begin = begin;
        take.row_count = last - begin;
        for (long panel = 0; panel < block->panels(); panel++) {
            take.lane_begin = panel * TILE_COLUMNS;
            take.lane_count = block->lanes(panel);
            by_form((int)bounds->form, block->panel(panel, (int)bounds->form, heaps->bias), stream, last - begin, take);
        }
    }
}

// ---- packing, lengths and single scores ----

EXPORT int gemel_has_int8() { return HAS_INT8; }
EXPORT int64_t gemel_lane_step() { return TILE_COLUMNS; }
EXPORT int64_t gemel_least_room() { return 2 * STREAM_ROWS * TILE_COLUMNS; }
EXPORT void gemel_pack_rows(const Block *block, const Bounds *bounds) { pack(*block, *bounds); }

// Squares of the lengths of rows `begin` .. `end`; not finite where a number is not.
EXPORT void gemel_squares(const Rows *rows, int64_t begin, int64_t end, double *out) {
    for (; begin < end; begin++) {
        const float *x = rows->row(begin);
        double sum = 0;
        if (rows->center)
            for (long k = 0; k < rows->dim; k++) sum += (x[k] - rows->center[k]) * (x[k] - rows->center[k]);
        else
            sum = exact_sum<PRODUCT>(x, x, rows->dim);
        *out++ = sum;
    }
}

EXPORT void gemel_exact(int kind, const Rows *left, const Rows *right, const int64_t *i, const int64_t *j, int64_t count,
                      float *out) {
    for (long at = 0; at < count; at++) out[at] = exact_pair(kind, *left, i[at], *right, j[at]);
}

// ---- late interaction ----

EXPORT void gemel_maxsim(const float *query, int64_t query_tokens, const Tokens *tokens, const int64_t *chosen, int64_t count,
                         int threads, float *out) {
    maxsim(query, query_tokens, *tokens, chosen, count, threads, out);
}

EXPORT void gemel_centroid_scores(const float *query, int64_t query_tokens, const CentroidCodes *codes, const int64_t *chosen,
                                  int64_t count, int threads, int32_t *out) {
    centroid_scores(query, query_tokens, *codes, chosen, count, threads, out);
}

EXPORT void gemel_nearest_centroids(const CentroidGroups *groups, const float *tokens, int64_t count, int64_t probes, int threads,
                                    uint16_t *out) {
    nearest_centroids(*groups, tokens, count, probes, threads, out);
}

// 0 baseline, 1 avx2, 2 avx512, 3 avx512vnni; called in the baseline kernel.
EXPORT int gemel_processor_level() {
#if defined(__x86_64__)
    const Processor has;
    return has.avx512vnni ? 3 : has.avx512 ? 2 : has.avx2 ? 1 : 0;
#else
    return 0;
#endif
}
