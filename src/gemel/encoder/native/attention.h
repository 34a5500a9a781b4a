// Attention within one text: qkv (tokens, qkv_width) -> context (tokens, query_width).
//
// Several query heads may share one head of keys and values (grouped-query attention). A row of scores is computed over
// the keys that any row of its block can see, in whole panels, and keys that a row does not see get the weight 0. Which
// keys those are depends on the text's own positions only, so the bits of a text do not depend on the other texts.
#pragma once
#include "network.h"

// Keys [begin, end): what a query, or any query of a block, can see.
struct Range {
    int64_t begin, end;
};

// Rows of a times the columns of a packed matrix from `columns.begin`, the start of a panel; columns.end is the end of a
// panel or of the matrix.
static void product_of_columns(const float *a, int64_t a_stride, const float *packed, int64_t rows, int64_t inputs, Range columns,
                               float *y, int64_t y_stride) {
    Product p = {};
    p.a = a;
    p.a_stride = a_stride;
    p.y = y;
    p.y_stride = y_stride;
    float_product(p, packed + columns.begin * inputs, rows, columns.end - columns.begin, inputs, 0, inputs);
}

// The two products of a head in float32: queries by keys, and their weights by values.
struct FloatProducts {
    // Keys transposed into the panels that products read: (head, tokens).
    static void pack_keys(const float *keys, int64_t stride, int64_t tokens, int64_t head, Scratch &s) {
        float *packed = s.keys;
        for (int64_t column = 0; column < tokens; column += TILE_COLUMNS) {
            int64_t wide = vectors_in(tokens - column) * LANES;
            int64_t real = tokens - column < wide ? tokens - column : wide;
            for (int64_t j = 0; j < real; j++)
                for (int64_t d = 0; d < head; d++) packed[d * wide + j] = keys[(column + j) * stride + d];
            for (int64_t j = real; j < wide; j++)
                for (int64_t d = 0; d < head; d++) packed[d * wide + j] = 0.0f;
            packed += head * wide;
        }
    }

    static void pack_values(const float *values, int64_t stride, int64_t tokens, int64_t head, Scratch &s) {
        float *packed = s.values;
        for (int64_t column = 0; column < head; column += TILE_COLUMNS) {
            int64_t wide = vectors_in(head - column) * LANES;
            int64_t real = head - column < wide ? head - column : wide;
            for (int64_t j = 0; j < tokens; j++) {
                memcpy(packed + j * wide, values + j * stride + column, real * 4);
                memset(packed + j * wide + real, 0, (wide - real) * 4);
            }
            packed += tokens * wide;
        }
    }

    static void scores(const float *queries, int64_t stride, int64_t rows, int64_t head, Range keys, Scratch &s, int64_t wide) {
        product_of_columns(queries, stride, s.keys, rows, head, keys, s.scores, wide);
    }

    // The weights of the keys are in s.scores.
    static void mix(Scratch &s, int64_t wide, int64_t rows, int64_t head, int64_t tokens, Range keys, float *y, int64_t stride) {
        Product p = {};
        p.a = s.scores;
        p.a_stride = wide;
        p.y = y;
        p.y_stride = stride;
        float_product(p, s.values, rows, head, tokens, keys.begin, keys.end);
    }
};

// The same in bfloat16; scores and their softmax stay float32. Two numbers of a head, or two tokens, are multiplied at once.
struct Bfloat16Products {
    static void pack_keys(const float *keys, int64_t stride, int64_t tokens, int64_t head, Scratch &s) {
        const int64_t steps = row_bytes<Bfloat16>(head) / 4;
        int32_t *packed = (int32_t *)s.keys, *pairs = (int32_t *)s.narrow_rows;
        for (int64_t column = 0; column < tokens; column += TILE_COLUMNS) {
            int64_t wide = vectors_in(tokens - column) * LANES;
            for (int64_t j = 0; j < wide; j++) {
                if (column + j < tokens)
                    bfloat16_row(keys + (column + j) * stride, head, (char *)pairs);
                else
                    memset(pairs, 0, steps * 4);
                for (int64_t k = 0; k < steps; k++) packed[k * wide + j] = pairs[k];
            }
            packed += steps * wide;
        }
    }

    static void pack_values(const float *values, int64_t stride, int64_t tokens, int64_t head, Scratch &s) {
        const int64_t bytes = narrow_values(tokens);
        uint16_t *packed = (uint16_t *)s.values, *row = (uint16_t *)s.narrow_rows;
        memset(packed, 0, bytes * round_up(head, LANES));
        for (int64_t t = 0; t < tokens; t++) {
            bfloat16_row(values + t * stride, head, (char *)row);
            for (int64_t column = 0; column < head; column += TILE_COLUMNS) {
                int64_t wide = vectors_in(head - column) * LANES;
                int64_t real = head - column < wide ? head - column : wide;
                uint16_t *to = packed + bytes / 2 * column + t / 2 * wide * 2 + t % 2;
                for (int64_t j = 0; j < real; j++) to[2 * j] = row[column + j];
            }
        }
    }

    static void scores(const float *queries, int64_t stride, int64_t rows, int64_t head, Range keys, Scratch &s, int64_t wide) {
        const int64_t bytes = row_bytes<Bfloat16>(head);
        for (int64_t r = 0; r < rows; r++) bfloat16_row(queries + r * stride, head, s.narrow_rows + r * bytes);
        Product p = product(s, bytes, s.scores, wide);
        for (int64_t column = keys.begin; column < keys.end; column += TILE_COLUMNS)
            narrow_panel<Bfloat16>(p, (const char *)s.keys + column * bytes, bytes / 4, rows, column - keys.begin,
                                   keys.end - column);
    }

    static void mix(Scratch &s, int64_t wide, int64_t rows, int64_t head, int64_t tokens, Range keys, float *y, int64_t stride) {
        const int64_t bytes = row_bytes<Bfloat16>(keys.end - keys.begin);
        for (int64_t r = 0; r < rows; r++)
            bfloat16_row(s.scores + r * wide, keys.end - keys.begin, s.narrow_rows + r * bytes);
        Product p = product(s, bytes, y, stride);
        for (int64_t column = 0; column < head; column += TILE_COLUMNS) {
            int64_t lanes = vectors_in(head - column) * LANES;
            const char *panel = (const char *)s.values + narrow_values(tokens) * column + keys.begin / 2 * lanes * 4;
            narrow_panel<Bfloat16>(p, panel, bytes / 4, rows, column, head - column);
        }
    }

    static Product product(Scratch &s, int64_t bytes, float *y, int64_t stride) {
        Product p = {};
        p.a_small = s.narrow_rows;
        p.a_stride = bytes;
        p.y = y;
        p.y_stride = stride;
        return p;
    }
};

// scores -> e^(score - largest), zero past the last token; gives 1 / sum. Lanes past the end hold the score of zero keys.
static float soften(float *scores, int64_t tokens) {
    const IntVec past_end = (IntVec)(lane_numbers() >= (int32_t)((tokens - 1) % LANES + 1));
    const int64_t last = round_up(tokens, LANES) - LANES;
    Vec most = pick(past_end, all(-INFINITY), load(scores + last));
    for (int64_t j = 0; j < last; j += LANES) most = larger(most, load(scores + j));
    float top = largest_of(most);
    return 1.0f / sum_over(tokens, [&](Vec &sum, int64_t j, int64_t count) {
        Vec e = keep_some(exp_of(load(scores + j) - top), count);
        store(scores + j, e);
        sum += e;
    });
}

// What the queries `first` .. `last` see of a text whose first `seen` tokens can be seen at all.
static Range visible(const Block &block, int64_t first, int64_t last, int64_t seen) {
    Range keys = {0, seen};
    if (block.window >= 0 && first > block.window) keys.begin = first - block.window;
    if (block.window >= 0 && last + block.window + 1 < seen) keys.end = last + block.window + 1;
    if (block.causal && last + 1 < keys.end) keys.end = last + 1;
    if (keys.begin > keys.end) keys.begin = keys.end;  // none: the window is behind the last that can be seen
    return keys;
}

// One row of scores, which starts at key `begin`: keys that are not visible get the weight 0, up to key `end`.
static float soften_visible(float *scores, Range all_keys, Range keys) {
    int64_t first = keys.begin - all_keys.begin, last = keys.end - all_keys.begin, end = all_keys.end - all_keys.begin;
    if (first == last) {
        memset(scores, 0, end * 4);
        return 0.0f;
    }
    int64_t start = first / (SUM_LANES / 2) * (SUM_LANES / 2);  // halves of the lanes are added first, in either order
    for (int64_t j = start; j < first; j++) scores[j] = -INFINITY;
    float share = soften(scores + start, last - start);
    for (int64_t j = 0; j < first; j++) scores[j] = 0.0f;
    for (int64_t j = last; j < end; j++) scores[j] = 0.0f;
    return share;
}

// Each head normalized, if the block does that, then those of queries and keys rotated by their position: numbers i and
// i + half of a head together, by the angle of position and i.
static void norm_and_rotate(const Block &block, float *qkv, int64_t tokens) {
    int64_t head = block.head, half = head / 2, rotated = block.heads + block.kv_heads;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < rotated + block.kv_heads; h++) {  // of the queries, then of the keys, then of the values
            float *first = qkv + t * block.qkv_width() + h * head, *second = first + half;
            const Norm &norm = h < block.heads ? block.query_norm : h < rotated ? block.key_norm : block.value_norm;
            if (norm.weight) add_and_norm(first, nullptr, first, head, norm);
            if (!block.rotary || h >= rotated) continue;
            const float *cosine = block.rotary + t * head, *sine = cosine + half;
            for (int64_t i = 0; i < half; i++) {
                float x = first[i], y = second[i];
                first[i] = x * cosine[i] - y * sine[i];
                second[i] = y * cosine[i] + x * sine[i];
            }
        }
}

// The smallest range of whole panels that holds these columns of a matrix of `outputs` columns, with the same borders on
// every level: multiples of all panels and of half the lanes of a sum. Keys keep their lanes, and sums their bits.
static Range whole_panels(Range columns, int64_t outputs) {
    const int64_t step = 48;
    int64_t end = round_up(columns.end, step);
    return {columns.begin / step * step, end < outputs ? end : outputs};
}

// Disentangled attention (DeBERTa, arXiv 2006.03654): the relative position of query and key has vectors of its own, one
// that meets the query and one that meets the key. They are weights, so they were projected and packed in advance.
struct RelativeScores {
    const Network &net;
    const Block &block;
    Scratch &s;
    Range rows;  // of the tables, that a text of this length needs

    RelativeScores(const Network &network, const Block &of, int64_t tokens, Scratch &scratch)
        : net(network), block(of), s(scratch), rows{0, 0} {
        if (!block.relative_keys && !block.relative_queries) return;
        const int32_t *zero = net.relative_index + net.max_positions - 1;
        rows = whole_panels({zero[1 - tokens], zero[tokens - 1] + 1}, net.relative_rows);
    }

    const float *table(const float *packed, int64_t head) const {
        return packed + head * round_up(net.relative_rows, LANES) * block.head;
    }

    void read_keys(const float *keys, int64_t stride, int64_t tokens, int64_t head) {
        if (block.relative_queries)
            product_of_columns(keys, stride, table(block.relative_queries, head), tokens, block.head, rows, s.relative_queries,
                               rows.end - rows.begin);
    }

    // Adds to scores (count, wide) of the queries from `row`, for all keys.
    void add(const float *queries, int64_t stride, int64_t head, int64_t row, int64_t count, int64_t tokens, int64_t wide) {
        if (!block.relative_keys && !block.relative_queries) return;
        int64_t width = rows.end - rows.begin;
        if (block.relative_keys)
            product_of_columns(queries, stride, table(block.relative_keys, head), count, block.head, rows, s.relative_keys, width);
        for (int64_t r = 0; r < count; r++) {
            const int32_t *index = net.relative_index + net.max_positions - 1 + row + r;  // of key 0; keys go down from it
            float *scores = s.scores + r * wide;
            for (int64_t j = 0; j < tokens; j++) {
                int64_t at = index[-j] - rows.begin;
                if (block.relative_keys) scores[j] += s.relative_keys[r * width + at];
                if (block.relative_queries) scores[j] += s.relative_queries[j * width + at];
            }
        }
    }
};

// One text; its tokens see the first `seen_tokens` of it. The scale of the scores is part of the query weights, of the query
// norm or of the relative tables.
template <class Products>
static void attention_by(const Network &net, const Block &block, float *qkv, float *context, int64_t tokens, int64_t seen_tokens,
                         Scratch &s) {
    int64_t head = block.head, stride = block.qkv_width(), wide = round_up(tokens, LANES), group = block.heads / block.kv_heads;
    if (block.rotary || block.query_norm.weight || block.key_norm.weight || block.value_norm.weight)
        norm_and_rotate(block, qkv, tokens);
    RelativeScores relative(net, block, tokens, s);
    for (int64_t h = 0; h < block.heads; h++) {
        const float *queries = qkv + h * head, *keys = qkv + (block.heads + h / group) * head;
        const float *values = keys + block.kv_heads * head;
        if (h % group == 0) {
            Products::pack_keys(keys, stride, tokens, head, s);
            Products::pack_values(values, stride, tokens, head, s);
        }
        relative.read_keys(keys, stride, tokens, h);
        for (int64_t row = 0; row < tokens; row += ATTENTION_ROWS) {
            int64_t rows = tokens - row < ATTENTION_ROWS ? tokens - row : ATTENTION_ROWS;
            Range seen = whole_panels(visible(block, row, row + rows - 1, seen_tokens), wide);
            Products::scores(queries + row * stride, stride, rows, head, seen, s, wide);
            relative.add(queries + row * stride, stride, h, row, rows, tokens, wide);
            seen.end = seen.end < tokens ? seen.end : tokens;
            float shares[ATTENTION_ROWS];
            for (int64_t r = 0; r < rows; r++) {
                if (block.relative_bias) {
                    const float *bias = block.relative_bias + h * (2 * net.max_positions - 1) + net.max_positions - 1 - (row + r);
                    for (int64_t j = seen.begin; j < seen.end; j++) s.scores[r * wide + j - seen.begin] += bias[j];
                }
                shares[r] = soften_visible(s.scores + r * wide, seen, visible(block, row + r, row + r, seen_tokens));
            }
            float *mixed = context + row * block.query_width() + h * head;
            Products::mix(s, wide, rows, head, tokens, seen, mixed, block.query_width());
            for (int64_t r = 0; r < rows; r++) {
                float *y = mixed + r * block.query_width();
                for_lanes(head, [&](int64_t d, int64_t count) { store_some(y + d, load_some(y + d, count) * shares[r], count); });
            }
        }
    }
}

static void attention(const Network &net, const Block &block, float *qkv, float *context, int64_t tokens, int64_t seen_tokens,
                      Scratch &s) {
    if (HAS_BFLOAT16 && block.qkv.kind == BFLOAT16)
        attention_by<Bfloat16Products>(net, block, qkv, context, tokens, seen_tokens, s);
    else
        attention_by<FloatProducts>(net, block, qkv, context, tokens, seen_tokens, s);
}
