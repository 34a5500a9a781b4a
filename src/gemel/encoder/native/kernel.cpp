// A transformer encoder over packed weights, post-norm or pre-norm: token ids in, hidden states out.
//
// No state: the caller owns every buffer and may call from many threads at once.
// Texts of any length are stored one after the other, so there is no padding and no mask. The rows of a matrix product
// are independent and attention stays within a text, so the bits of a text do not depend on the other texts of a batch.
#include "matmul.h"
#include "team.h"

#define EXPORT __attribute__((visibility("default")))

extern "C" {

struct Linear {
    const void *packed;
    const float *bias;        // padded with zeros to whole vectors
    const float *scale;       // null: float32 weights
    const float *column_sum;
    const float *even;        // per input, int8 only; may be null
    int64_t outputs, inputs;
};

struct Norm {
    const float *weight, *bias;  // weight null: no norm here
    double epsilon;
};

struct Block {
    Linear qkv, out, up, down;
    Norm attention_norm, ffn_norm;
    const float *rotary;  // (max_positions, head): cosines, then sines of each position; null: none
    int64_t window;       // tokens attend to others at most this many positions away; negative: all
};

struct Network {
    const float *word, *positions, *relative_bias;
    const Linear *projection;  // null: the table is as wide as the network
    const Block *blocks;
    Norm embedding_norm, final_norm;
    int64_t block_count, table_width, width, heads, ffn_width, activation, max_positions, prenorm, gated;
    int64_t padding;                // the id of a token that takes no position; negative: none
    const float *padding_position;  // what is added to that token instead
};

EXPORT int gemel_int8_bits() { return HAS_INT8; }

// 3: AVX-512 with VNNI, 2: AVX-512, 1: AVX2 with FMA, 0: whatever this library was compiled for.
EXPORT int gemel_processor_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// Bytes of a packed weight matrix.
EXPORT int64_t gemel_packed_bytes(int64_t outputs, int64_t inputs, int int8) {
    int64_t columns = round_up(outputs, LANES);
    return int8 ? columns * round_up(inputs, 4) : columns * inputs * (int64_t)sizeof(float);
}

EXPORT void gemel_pack_float(const float *weight, int64_t outputs, int64_t inputs, float *packed) {
    for (int64_t column = 0; column < outputs; column += TILE_COLUMNS) {
        int64_t wide = vectors_in(outputs - column) * LANES;
        for (int64_t j = 0; j < wide; j++) {
            const float *row = weight + (column + j) * inputs;
            bool real = column + j < outputs;
            for (int64_t k = 0; k < inputs; k++) packed[k * wide + j] = real ? row[k] : 0.0f;
        }
        packed += inputs * wide;
    }
}

EXPORT void gemel_pack_int8(const int8_t *weight, int64_t outputs, int64_t inputs, int8_t *packed) {
    int64_t deep = round_up(inputs, 4);
    for (int64_t column = 0; column < outputs; column += TILE_COLUMNS) {
        int64_t wide = vectors_in(outputs - column) * LANES;
        for (int64_t j = 0; j < wide; j++)
            for (int64_t k = 0; k < deep; k++)
                packed[(k / 4 * wide + j) * 4 + k % 4] =
                    column + j < outputs && k < inputs ? weight[(column + j) * inputs + k] : 0;
        packed += deep * wide;
    }
}
}

// Queries of a head that are processed together: keys and values are loaded once for all of them.
#define ATTENTION_ROWS (4 * TILE_ROWS)

// Buffers of one call, inside the caller's scratch memory.
struct Scratch {
    float *x, *qkv, *context, *wide, *keys, *values, *scores, *step, *low;
    uint8_t *integers;
    int64_t bytes;

    // `rows` tokens together, `tokens` in the longest text.
    Scratch(const Network &net, int64_t rows, int64_t tokens, void *memory) : bytes(0) {
        int64_t head = net.width / net.heads;
        int64_t widest = net.ffn_width > net.width ? net.ffn_width : net.width;
        widest = widest > net.table_width ? widest : net.table_width;
        char *base = (char *)memory;
        auto take = [&](int64_t size) {
            char *at = base ? base + bytes : nullptr;  // null: only the size is needed
            bytes += round_up(size, 64);
            return at;
        };
        x = (float *)take(rows * net.width * 4);
        context = (float *)take(rows * net.width * 4);
        // qkv and the inner vectors of the feed-forward are never in use at the same time
        int64_t inner = 3 * net.width > widest ? 3 * net.width : widest;
        qkv = wide = (float *)take(rows * inner * 4);
        keys = (float *)take(head * round_up(tokens, LANES) * 4);
        values = (float *)take(tokens * round_up(head, LANES) * 4);
        scores = (float *)take(ATTENTION_ROWS * round_up(tokens, LANES) * 4);
        step = (float *)take(rows * 4);
        low = (float *)take(rows * 4);
        integers = (uint8_t *)take(rows * round_up(widest, 4));
    }
};

static void linear(const Linear &layer, const float *x, float *y, int64_t rows, int activation, Scratch &s, Team &team) {
    Product p = {};
    p.y = y;
    p.y_stride = layer.outputs;
    p.bias = layer.bias;
    p.activation = activation;
    if (!layer.scale) {
        p.a = x;
        p.a_stride = layer.inputs;
        team.run(panels_of(layer.outputs), [&](long panel) {
            float_panel(p, (const float *)layer.packed, rows, layer.outputs, layer.inputs, panel);
        });
        return;
    }
    p.a_int = s.integers;
    p.a_stride = round_up(layer.inputs, 4);
    p.step = s.step;
    p.low = s.low;
    p.scale = layer.scale;
    p.column_sum = layer.column_sum;
    for (int64_t r = 0; r < rows; r++)
        quantize_row(x + r * layer.inputs, layer.even, layer.inputs, s.integers + r * p.a_stride, p.a_stride, s.step + r,
                     s.low + r);
    team.run(panels_of(layer.outputs), [&](long panel) {
        int8_panel(p, (const int8_t *)layer.packed, rows, layer.outputs, layer.inputs, panel);
    });
}

// (rows, 2 n) -> (rows, n), in place: the first half activated, times the second half.
static void gate(float *x, int64_t rows, int64_t n, int activation) {
    for (int64_t r = 0; r < rows; r++) {
        const float *active = x + r * 2 * n, *factor = active + n;
        float *y = x + r * n;  // never overtakes what is still to be read
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) store(y + i, activate(load(active + i), activation) * load(factor + i));
        for (; i < n; i++) y[i] = activate(all(active[i]), activation)[0] * factor[i];
    }
}

// y = norm(x + extra); extra may be null, and without a norm y is the sum. Mean first, then the squared distances from it.
static void add_and_norm(const float *x, const float *extra, float *y, int64_t n, const Norm &norm) {
    Vec total = all(0.0f);
    float rest = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        Vec v = extra ? load(x + i) + load(extra + i) : load(x + i);
        store(y + i, v);
        total += v;
    }
    for (; i < n; i++) {
        y[i] = extra ? x[i] + extra[i] : x[i];
        rest += y[i];
    }
    if (!norm.weight) return;
    float mean = (sum_of(total) + rest) / (float)n;
    Vec squares = all(0.0f);
    rest = 0;
    for (i = 0; i + LANES <= n; i += LANES) {
        Vec v = load(y + i) - mean;
        squares = fused(v, v, squares);
    }
    for (; i < n; i++) rest += (y[i] - mean) * (y[i] - mean);
    float spread = 1.0f / std::sqrt((sum_of(squares) + rest) / (float)n + (float)norm.epsilon);
    for (i = 0; i + LANES <= n; i += LANES) {
        Vec v = (load(y + i) - mean) * spread * load(norm.weight + i);
        store(y + i, norm.bias ? v + load(norm.bias + i) : v);
    }
    for (; i < n; i++) y[i] = (y[i] - mean) * spread * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
}

// Keys of one head, transposed into the panels that float products read: (head, tokens).
static void pack_keys(const float *keys, int64_t stride, int64_t tokens, int64_t head, float *packed) {
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

static void pack_values(const float *values, int64_t stride, int64_t tokens, int64_t head, float *packed) {
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

// scores -> e^(score - largest), zero past the last token; gives 1 / sum. Lanes past the end hold the score of zero keys.
static float soften(float *scores, int64_t tokens, const float *bias) {
    const IntVec past_end = (IntVec)(lane_numbers() >= (int32_t)((tokens - 1) % LANES + 1));
    const int64_t last = round_up(tokens, LANES) - LANES;
    if (bias)
        for (int64_t j = 0; j < tokens; j++) scores[j] += bias[j];
    Vec tail = pick(past_end, all(-INFINITY), load(scores + last));
    Vec most = tail;
    for (int64_t j = 0; j < last; j += LANES) most = larger(most, load(scores + j));
    float top = largest_of(most);
    Vec total = all(0.0f);
    for (int64_t j = 0; j < last; j += LANES) {
        Vec e = exp_of(load(scores + j) - top);
        store(scores + j, e);
        total += e;
    }
    tail = pick(past_end, all(0.0f), exp_of(tail - top));
    store(scores + last, tail);
    return 1.0f / sum_of(total + tail);
}

// Queries and keys rotated by their positions: numbers i and i + half of a head together, by the angle of position and i.
static void rotate(const Network &net, const float *table, float *qkv, int64_t tokens) {
    int64_t head = net.width / net.heads, half = head / 2;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < 2 * net.heads; h++) {  // the heads of the queries, then those of the keys
            float *first = qkv + t * 3 * net.width + h * head, *second = first + half;
            const float *cosine = table + t * head, *sine = cosine + half;
            for (int64_t i = 0; i < half; i++) {
                float x = first[i], y = second[i];
                first[i] = x * cosine[i] - y * sine[i];
                second[i] = y * cosine[i] + x * sine[i];
            }
        }
}

// One row of scores under a window: keys outside [position - window, position + window] get weight 0.
static float soften_near(float *scores, int64_t tokens, int64_t position, int64_t window) {
    int64_t first = position > window ? position - window : 0;
    int64_t end = position + window + 1 < tokens ? position + window + 1 : tokens;
    int64_t start = first / LANES * LANES;
    for (int64_t j = start; j < first; j++) scores[j] = -INFINITY;
    float share = soften(scores + start, end - start, nullptr);
    for (int64_t j = 0; j < first; j++) scores[j] = 0.0f;
    for (int64_t j = end; j < tokens; j++) scores[j] = 0.0f;
    return share;
}

// One text: qkv (tokens, 3 width) -> context (tokens, width). The 1/sqrt(head) is folded into the query weights.
static void attention(const Network &net, const Block &block, float *qkv, float *context, int64_t tokens, Scratch &s) {
    int64_t head = net.width / net.heads, stride = 3 * net.width, wide = round_up(tokens, LANES);
    if (block.rotary) rotate(net, block.rotary, qkv, tokens);
    for (int64_t h = 0; h < net.heads; h++) {
        pack_keys(qkv + net.width + h * head, stride, tokens, head, s.keys);
        pack_values(qkv + 2 * net.width + h * head, stride, tokens, head, s.values);
        const float *bias = net.relative_bias ? net.relative_bias + h * (2 * net.max_positions - 1) : nullptr;
        for (int64_t row = 0; row < tokens; row += ATTENTION_ROWS) {
            int64_t rows = tokens - row < ATTENTION_ROWS ? tokens - row : ATTENTION_ROWS;
            Product scores = {};
            scores.a = qkv + row * stride + h * head;
            scores.a_stride = stride;
            scores.y = s.scores;
            scores.y_stride = wide;
            float_product(scores, s.keys, rows, wide, head);
            Product mix = {};
            mix.a = s.scores;
            mix.a_stride = wide;
            mix.y = context + row * net.width + h * head;
            mix.y_stride = net.width;
            float shares[ATTENTION_ROWS];
            for (int64_t r = 0; r < rows; r++)
                shares[r] = block.window >= 0
                                ? soften_near(s.scores + r * wide, tokens, row + r, block.window)
                                : soften(s.scores + r * wide, tokens, bias ? bias + net.max_positions - 1 - (row + r) : nullptr);
            float_product(mix, s.values, rows, head, tokens);
            for (int64_t r = 0; r < rows; r++) {
                float *y = mix.y + r * net.width;
                int64_t d = 0;
                for (; d + LANES <= head; d += LANES) store(y + d, load(y + d) * shares[r]);
                for (; d < head; d++) y[d] *= shares[r];
            }
        }
    }
}

extern "C" {

EXPORT int64_t gemel_scratch_bytes(const Network *net, int64_t rows, int64_t longest) {
    return Scratch(*net, rows, longest, nullptr).bytes + 64;
}

// ids (rows,) -> hidden (rows, width); text i is rows starts[i] to starts[i + 1]. Ids and lengths were checked by the caller.
EXPORT void gemel_hidden(const Network *network, const int32_t *ids, const int64_t *starts, int64_t texts, int64_t longest,
                         float *hidden, void *memory, int threads) {
    const Network &net = *network;
    Team team(threads);
    int64_t rows = starts[texts];
    Scratch s(net, rows, longest, (void *)round_up((int64_t)memory, 64));
    float *table = net.projection ? s.wide : hidden;
    for (int64_t text = 0; text < texts; text++)
        for (int64_t r = starts[text], position = 0; r < starts[text + 1]; r++) {
            const bool padding = net.padding_position && ids[r] == net.padding;
            const float *position = padding         ? net.padding_position
                                    : net.positions ? net.positions + position * net.table_width
                                                    : nullptr;
            position += !padding;
            add_and_norm(net.word + ids[r] * net.table_width, position, table + r * net.table_width, net.table_width,
                         net.embedding_norm);
        }
    if (net.projection) linear(*net.projection, table, hidden, rows, NONE, s, team);
    auto attend = [&](const Block &block, const float *x) {  // x -> s.x
        linear(block.qkv, x, s.qkv, rows, NONE, s, team);
        for (int64_t text = 0; text < texts; text++)
            attention(net, block, s.qkv + starts[text] * 3 * net.width, s.context + starts[text] * net.width,
                      starts[text + 1] - starts[text], s);
        linear(block.out, s.context, s.x, rows, NONE, s, team);
    };
    auto feed_forward = [&](const Block &block, const float *x) {  // x -> s.x
        linear(block.up, x, s.wide, rows, net.gated ? NONE : (int)net.activation, s, team);
        if (net.gated) gate(s.wide, rows, net.ffn_width / 2, (int)net.activation);
        linear(block.down, s.wide, s.x, rows, NONE, s, team);
    };
    auto norm_rows = [&](const float *x, const float *extra, float *y, const Norm &norm) {
        for (int64_t r = 0; r < rows; r++) {
            int64_t at = r * net.width;
            add_and_norm(x + at, extra ? extra + at : nullptr, y + at, net.width, norm);
        }
    };
    const Norm none = {nullptr, nullptr, 0};
    for (int64_t i = 0; i < net.block_count; i++) {
        const Block &block = net.blocks[i];
        if (net.prenorm) {
            norm_rows(hidden, nullptr, s.x, block.attention_norm);
            attend(block, s.x);
            norm_rows(s.x, hidden, hidden, none);
            norm_rows(hidden, nullptr, s.x, block.ffn_norm);
            feed_forward(block, s.x);
            norm_rows(s.x, hidden, hidden, none);
        } else {
            attend(block, hidden);
            norm_rows(s.x, hidden, hidden, block.attention_norm);
            feed_forward(block, hidden);
            norm_rows(s.x, hidden, hidden, block.ffn_norm);
        }
    }
    if (net.final_norm.weight) norm_rows(hidden, nullptr, hidden, net.final_norm);
}
}
