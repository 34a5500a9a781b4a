// Finds the pairs of rows whose score reaches a floor. Tiles of cheap sums rule pairs out; exact.h decides on the rest,
// so the answer has the same bits whatever the tile, the form of the sums, the thread or the processor.
#include <vector>

#include "block.h"

#define DOOR extern "C" __attribute__((visibility("default")))

static const long AT_ONCE = 64;  // streaming rows made ready together: they stay in the second-level cache

// Streaming rows in the form that tiles read.
class Ready {
  public:
    Ready(const Rows &rows, const Bounds &bounds, const Block &block, bool error_counts)
        : rows(rows), bounds(bounds), error_counts(error_counts), padded(padded_dim(rows.dim)), widest(*block.widest),
          values(AT_ONCE * padded), small(bounds.form == INT8 ? AT_ONCE * padded : 0) {}

    // Rows `begin` .. `end`: a sum with its bias must reach `base`.
    Stream make(long begin, long end, float base) {
        for (long r = 0; r < AT_ONCE; r++) {
            limit[r] = INFINITY;
            step[r] = 0;
            if (begin + r >= end) continue;
            float *scaled = values.data() + r * padded, error = 0;
            scale_row(rows, rows.position(begin + r), scaled, padded);
            if (bounds.form == INT8) error = to_int8(scaled, padded, small.data() + r * padded, step + r);
            if (!error_counts) error = 0;
            // x y = x' y' + (x - x') y' + x (y - y'): what is after x' y' is no longer than the errors below and of y
            limit[r] = base - row_bias(bounds, scaled, padded, error * (1.0f + widest));
        }
        return {values.data(), small.data(), limit, step, padded};
    }

  private:
    const Rows &rows;
    const Bounds &bounds;
    bool error_counts;
    long padded;
    float widest;
    std::vector<float> values;
    std::vector<uint8_t> small;
    float limit[AT_ONCE], step[AT_ONCE];
};

template <class Take>
static void by_form(int form, const Panel &panel, const Stream &stream, long rows, Take &take) {
    rows = round_up(rows, TILE_ROWS);
    if (form == FLOAT) panel_by_rows<FLOAT>(panel, stream, rows, take);
    if (form == INT8) panel_by_rows<INT8>(panel, stream, rows, take);
    if (form == GAPS) panel_by_rows<GAPS>(panel, stream, rows, take);
}

// ---- all pairs that reach one floor ----

struct Found {
    int32_t *left, *right;
    float *score;
    int64_t room;
};

struct PairTake {
    const Block &block;
    const Rows &right;
    Found found;
    bool triangle;
    int64_t *patience;  // looks for nothing that may still be spent
    long lane_begin, lane_count, row_begin, row_count, settled, count;

    void operator()(long lane, long row, float) {
        if (lane >= lane_count || row >= row_count) return;
        long i = lane_begin + lane, j = row_begin + row;
        if (triangle && j <= i) return;
        found.left[count] = (int32_t)i;
        found.right[count++] = (int32_t)j;
    }

    // Candidates get their exact score; those below the floor go.
    void settle(int kind, float floor) {
        for (long at = settled; at < count; at++) {
            long i = found.left[at], j = found.right[at];
            float score = exact_pair(kind, *block.rows, i, right, j);
            if (!(score >= floor)) {
                --*patience;
                continue;
            }
            found.left[settled] = (int32_t)i;
            found.right[settled] = (int32_t)j;
            found.score[settled++] = score;
        }
        count = settled;
    }
};

// Pairs of the block with right rows `state[0]` .. `end`, from panel `state[1]` on. Stops early when `found` is full, or
// when more than `state[2]` candidates were looked at for nothing; `state` then says where to go on. Returns how many
// were found.
DOOR int64_t gemel_scan_pairs(const Block *block, const Rows *right, const Bounds *bounds, int64_t end, float floor,
                              int triangle, const Found *found, int64_t *state) {
    Ready ready(*right, *bounds, *block, true);
    PairTake take = {*block, *right, *found, triangle != 0, state + 2, 0, 0, 0, 0, 0, 0};
    const float base = bounds->limit(floor);
    for (; state[0] < end; state[0] += AT_ONCE, state[1] = 0) {
        long last = std::min<long>(state[0] + AT_ONCE, end);
        Stream stream = ready.make(state[0], last, base);
        take.row_begin = state[0];
        take.row_count = last - state[0];
        for (; state[1] < block->panels(); state[1]++) {
            take.lane_begin = block->begin + state[1] * TILE_COLUMNS;
            take.lane_count = block->lanes(state[1]);
            if (triangle && last - 1 <= take.lane_begin) break;
            if (take.count + AT_ONCE * TILE_COLUMNS > found->room) {
                take.settle((int)bounds->kind, floor);
                if (state[2] < 0 || take.count + AT_ONCE * TILE_COLUMNS > found->room) return take.count;
            }
            by_form((int)bounds->form, block->panel(state[1], (int)bounds->form, block->own), stream, last - state[0], take);
        }
    }
    take.settle((int)bounds->kind, floor);
    return take.count;
}

// ---- the k best of every lane ----

struct Heaps {       // (lanes, k), the worst of each lane first
    float *score;
    int64_t *index;
    int64_t *filled;
    float *bias;     // a lane: its own, less the limit that its worst sets; infinite until it has k
    int64_t k;
    int64_t exact;   // 0: keep the estimates
};

struct HeapTake {
    const Block &block;
    const Rows &corpus;
    const Bounds &bounds;
    Heaps heaps;
    int64_t *patience;
    long lane_begin, lane_count, row_begin, row_count;
    const float *biases;

    static bool worse(float a, int64_t i, float b, int64_t j) { return a < b || (a == b && i > j); }

    void operator()(long lane, long row, float value) {
        if (lane >= lane_count || row >= row_count) return;
        long at = lane_begin + lane, k = heaps.k;
        int64_t position = corpus.position(row_begin + row);
        float score = value;
        if (heaps.exact)
            score = exact_pair((int)bounds.kind, *block.rows, block.rows->position(block.begin + at), corpus, position);
        else if (bounds.kind == EUCLIDEAN)
            score += block.own[at] + biases[row];
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
        float limit = heaps.exact ? bounds.limit(scores[0]) : scores[0];
        heaps.bias[at] = block.own[at] - limit;
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
// looked at for nothing; `state[0]` then says where to go on.
DOOR void gemel_scan_nearest(const Block *block, const Rows *corpus, const Bounds *bounds, int64_t end, const Heaps *heaps,
                             int64_t *state) {
    Ready ready(*corpus, *bounds, *block, heaps->exact);
    float biases[AT_ONCE];
    HeapTake take = {*block, *corpus, *bounds, *heaps, state + 1, 0, 0, 0, 0, biases};
    for (; state[0] < end && state[1] >= 0; state[0] += AT_ONCE) {
        long begin = state[0], last = std::min<long>(begin + AT_ONCE, end);
        Stream stream = ready.make(begin, last, 0.0f);
        for (long r = 0; r < last - begin; r++) biases[r] = -stream.limit[r];
        take.row_begin = begin;
        take.row_count = last - begin;
        for (long panel = 0; panel < block->panels(); panel++) {
            take.lane_begin = panel * TILE_COLUMNS;
            take.lane_count = block->lanes(panel);
            by_form((int)bounds->form, block->panel(panel, (int)bounds->form, heaps->bias), stream, last - begin, take);
        }
    }
}

// ---- small doors ----

DOOR int gemel_has_int8() { return HAS_INT8; }
DOOR int64_t gemel_lane_step() { return TILE_COLUMNS; }
DOOR int64_t gemel_least_room() { return 2 * AT_ONCE * TILE_COLUMNS; }
DOOR void gemel_pack(const Block *block, const Bounds *bounds, int error_counts) { pack(*block, *bounds, error_counts); }

// Squares of the lengths of rows `begin` .. `end`; not finite where a number is not.
DOOR void gemel_squares(const Rows *rows, int64_t begin, int64_t end, double *out) {
    for (; begin < end; begin++) {
        const float *x = rows->row(begin);
        double sum = 0;
        if (rows->centre)
            for (long k = 0; k < rows->dim; k++) sum += (x[k] - rows->centre[k]) * (x[k] - rows->centre[k]);
        else
            sum = exact_sum<PRODUCT>(x, x, rows->dim);
        *out++ = sum;
    }
}

DOOR void gemel_exact(int kind, const Rows *left, const Rows *right, const int64_t *i, const int64_t *j, int64_t count,
                      float *out) {
    for (long at = 0; at < count; at++) out[at] = exact_pair(kind, *left, i[at], *right, j[at]);
}

// 0 baseline, 1 avx2, 2 avx512, 3 avx512vnni; the baseline kernel answers for the others.
DOOR int gemel_processor_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq"))
        return 1;
    return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
#else
    return 0;
#endif
}
