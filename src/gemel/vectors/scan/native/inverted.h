// Search in an inverted file; ../../inverted.py makes the file and does the same in NumPy.
//
// Rows are in windows of 65,536: a window's sums stay in the cache, and a posting takes two bytes for its row. A product of
// two float32 is exact in float64, and each sum is made from the first column to the last, so that a score has the same
// bits whatever is searched with it, and on every processor.
//
// Where no weight is negative, blocks of rows are ruled out: the largest weight of each word in a block bounds the score
// of all its rows. The bounds are whole numbers, so the same blocks are chosen everywhere.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

static const long WINDOW = 1 << 16;

struct Inverted {
    const int64_t *starts;        // (windows, columns + 1) where the postings of a column start
    const uint16_t *rows;         // (postings,) in the window, ascending in each column
    const float *weights;         // (postings,)
    const int32_t *tables;        // (windows, columns) the table of a long list, or -1
    const float *tops;            // (windows, columns) the largest weight of a list
    const uint16_t *block_starts; // (tables, blocks) where a block starts in its list
    const uint8_t *block_tops;    // (tables, blocks) its largest weight: 255 is that of the list, rounded up
    int64_t count, columns, shift; // rows; columns; a block has 1 << shift rows

    long windows() const { return (count + WINDOW - 1) / WINDOW; }
    long blocks() const { return WINDOW >> shift; }  // of a window
};

struct SparseQuery {
    const int32_t *columns;  // ascending
    const float *values;
    int64_t terms;
    const uint8_t *inside;   // (rows,) which count; null: all
};

struct FoundRow {
    float score;
    int64_t row;
    bool operator<(const FoundRow &other) const {  // better ones first
        return score > other.score || (score == other.score && row < other.row);
    }
};

class InvertedSearch {
  public:
    // `sums`: (65,536,) for the rows of a window.
    InvertedSearch(const Inverted &file, const SparseQuery &query, long k, double *sums)
        : file(file), query(query), k(k), sums(sums) {}

    void all() {
        for (long window = 0; window < file.windows(); window++) {
            long count = std::min<long>(file.count - window * WINDOW, WINDOW);
            std::fill(sums, sums + count, -0.0);
            read(window);
            for (const List &list : lists) add(list.begin, list.end, list.value);
            take(window, 0, count);
        }
    }

    // Whether bounds save more than they cost: there are `least` postings in lists with tables, more than in others.
    bool worth(long least) {
        long with = 0, without = 0;
        for (long window = 0; window < file.windows(); window++) {
            read(window);
            for (const List &list : lists) (list.table < 0 ? without : with) += list.end - list.begin;
        }
        return with >= least && with / 4 >= std::min(without, least);
    }

    // As `all`, without the blocks that cannot have one of the best rows. `share`: a bound counts this much of what it is;
    // 1: no row is missed.
    void pruned(double share) {
        bound();
        std::vector<std::pair<uint32_t, int64_t>> first;
        for (long block = 0; block < (long)bounds.size(); block++)
            if (bounds[block]) first.push_back({~bounds[block], block});
        long count = std::min<long>(first.size(), std::max<long>(FIRST_BLOCKS, (2 * k) >> file.shift));
        std::nth_element(first.begin(), first.begin() + count, first.end());
        std::vector<int64_t> chosen;
        for (long at = 0; at < count; at++) chosen.push_back(first[at].second);
        std::sort(chosen.begin(), chosen.end());
        for (long at = 0; at < count;) {
            long window = chosen[at] / file.blocks(), end = at;
            while (end < count && chosen[end] / file.blocks() == window) end++;
            score(window, {chosen.begin() + at, chosen.begin() + end});
            at = end;
        }
        for (int64_t block : chosen) bounds[block] = 0;
        for (long window = 0; window < file.windows(); window++) {
            double least = (long)best.size() < k ? 0 : (double)best.front().score;
            chosen.clear();
            for (long block = window * file.blocks(); block < (window + 1) * file.blocks(); block++)
                if (bounds[block] && bounds[block] * unit * ROUNDING * share >= least) chosen.push_back(block);
            if (!chosen.empty()) score(window, chosen);
        }
    }

    long write(int64_t *rows, float *scores) {
        std::sort_heap(best.begin(), best.end());
        for (const FoundRow &found : best) {
            *rows++ = found.row;
            *scores++ = found.score;
        }
        return (long)best.size();
    }

  private:
    static constexpr long FIRST_BLOCKS = 16;
    static constexpr long FACTOR = 4095;  // the largest factor of a column: sums of products with 255 stay below 2 ** 32

    static constexpr double ROUNDING = 1 + 1e-6;  // of a score to float32, and of the sums before

    struct List {
        long begin, end, table;
        double value, top;  // of the query; of the list
    };

    // The lists of the query's columns in a window.
    void read(long window) {
        lists.clear();
        const int64_t *starts = file.starts + window * (file.columns + 1);
        const long first = window * file.columns;
        for (long at = 0; at < query.terms; at++) {
            long column = query.columns[at];
            if (starts[column] < starts[column + 1])
                lists.push_back({starts[column], starts[column + 1], file.tables[first + column], query.values[at],
                                 file.tops[first + column]});
        }
    }

    void add(long begin, long end, double value) {
        for (long at = begin; at < end; at++) sums[file.rows[at]] += value * file.weights[at];
    }

    void add_blocks(const List &list, const std::vector<int64_t> &blocks) {
        const uint16_t *starts = file.block_starts + list.table * file.blocks();
        const long last = file.blocks() - 1, length = list.end - list.begin;
        for (int64_t each : blocks) {
            long block = each & last, begin = starts[block], end = block < last ? starts[block + 1] : length;
            add(list.begin + begin, list.begin + std::min(end, length), list.value);
        }
    }

    // Sums of rows `begin` .. `end` of a window -> the best so far.
    void take(long window, long begin, long end) {
        for (long part = begin; part < end; part += PART) {
            long stop = std::min(part + PART, end);
            if ((long)best.size() == k) {
                // what rounds to the worst of the best, or to more, is above the float before it
                double limit = std::nextafter(best.front().score, -INFINITY);
                int some = 0;
                for (long row = part; row < stop; row++) some |= sums[row] > limit;
                if (!some) continue;
            }
            for (long row = part; row < stop; row++) consider(window * WINDOW + row, sums[row]);
        }
    }

    void consider(int64_t row, double sum) {
        if (sum == 0 && std::signbit(sum)) return;  // no column in common: any sum, even of 1 and -1, is another zero
        if (query.inside && !query.inside[row]) return;
        FoundRow found = {(float)sum + 0.0f, row};
        if ((long)best.size() == k) {
            if (!(found < best.front())) return;
            std::pop_heap(best.begin(), best.end());
            best.back() = found;
        } else {
            best.push_back(found);
        }
        std::push_heap(best.begin(), best.end());
    }

    // The exact scores of some blocks of one window.
    void score(long window, const std::vector<int64_t> &blocks) {
        const long rows = 1L << file.shift, first = window * file.blocks();
        for (int64_t block : blocks) std::fill_n(sums + (block - first) * rows, rows, -0.0);
        read(window);
        bool most = (long)blocks.size() * 2 > file.blocks();
        for (const List &list : lists) {  // a list without a table also adds to rows that nobody reads
            if (list.table < 0 || most)
                add(list.begin, list.end, list.value);
            else
                add_blocks(list, blocks);
        }
        for (int64_t block : blocks)
            take(window, (block - first) * rows, std::min<long>((block - first + 1) * rows, file.count - window * WINDOW));
    }

    // What no row of a block exceeds, in units.
    void bound() {
        double top = 0;
        for (long window = 0; window < file.windows(); window++) {
            read(window);
            for (const List &list : lists) top = std::max(top, list.value * list.top);
        }
        unit = top / 255 / FACTOR;
        per_unit = 1 / unit;
        bounds.assign(file.windows() * file.blocks(), 0);
        for (long window = 0; window < file.windows(); window++) {
            read(window);
            uint32_t *into = bounds.data() + window * file.blocks();
            for (const List &list : lists) {
                if (list.table < 0) {
                    bound_short(list, into);
                    continue;
                }
                const uint8_t *tops = file.block_tops + list.table * file.blocks();
                const uint32_t factor = units(list.value * list.top / 255);
                for (long block = 0; block < file.blocks(); block++) into[block] += factor * tops[block];
            }
        }
        if (query.inside) {
            const long rows = 1L << file.shift;
            for (long block = 0; block < (long)bounds.size(); block++) {
                const uint8_t *begin = query.inside + block * rows, *end = query.inside + std::min<long>((block + 1) * rows, file.count);
                if (bounds[block] && std::find(begin, end, 1) == end) bounds[block] = 0;
            }
        }
    }

    void bound_short(const List &list, uint32_t *into) {
        long last = -1;
        uint32_t top = 0;
        for (long at = list.begin; at < list.end; at++) {
            long block = file.rows[at] >> file.shift;
            uint32_t now = units(list.value * file.weights[at]);
            if (block != last) top = 0;
            if (now > top) {
                into[block] += now - top;
                top = now;
            }
            last = block;
        }
    }

    // At least the number, in units.
    uint32_t units(double number) const { return (uint32_t)(number * per_unit) + 1; }

    static constexpr long PART = 64;

    const Inverted &file;
    const SparseQuery &query;
    const long k;
    double *sums, unit = 0, per_unit = 0;
    std::vector<List> lists;
    std::vector<uint32_t> bounds;  // of each block of the file
    std::vector<FoundRow> best;    // a heap, the worst first
};

static const long MOST_TERMS = 1024;  // that are bounded: their sum fits in 32 bits

// The best `k` rows, best first; returns how many there are. `share`: see `pruned`, 0: nothing is ruled out; `least`: see
// `worth`.
EXPORT int64_t gemel_inverted(const Inverted *file, const SparseQuery *query, int64_t k, double share, int64_t least,
                              double *sums, int64_t *rows, float *scores) {
    InvertedSearch search(*file, *query, k, sums);
    if (share > 0 && query->terms <= MOST_TERMS && search.worth(least))
        search.pruned(share);
    else
        search.all();
    return search.write(rows, scores);
}
