// A transformer over packed weights as the caller describes it, and the working memory of one call.
//
// The structures are filled by `engines/native.py` through ctypes: their fields stand there in the same order.
#pragma once
#include "bfloat16.h"
#include "int8.h"

extern "C" {

// What weights are stored as; `engines/native.py` has the same numbers.
enum Kind { FLOAT32 = 0, INT8 = 1, BFLOAT16 = 2 };

struct Linear {
    const void *packed;
    const float *bias;        // padded with zeros to whole vectors
    const float *scale, *column_sum;  // per output, int8 only
    const float *even;                // per input, int8 only; may be null
    int64_t outputs, inputs, kind;
};

struct Norm {
    const float *weight, *bias;  // weight null: no norm here
    double epsilon;
    int64_t rms;  // divide by the root mean square; the mean is not subtracted
};

// Reads the word vectors again after the feed-forward step: h + norm(out(act(gate(h)) * words_norm(words(w)))) (Gemma).
struct WordStep {
    Linear words, gate, out;
    Norm words_norm, norm;
};

// Beside a block: norm(block(h) + act(linear(neighbors of h))) (DeBERTa v2). The rows of the neighbors are side by side.
struct Convolution {
    Linear linear;
    Norm norm;
    int64_t tokens, activation;  // tokens: neighbors with the token itself
};

struct Block {
    Linear qkv, out, up, down;
    Norm attention_norm, ffn_norm;          // before the step (pre-norm) or after the residual sum (post-norm)
    Norm attention_out_norm, ffn_out_norm;  // of the result of a step, before it is added (Gemma)
    Norm query_norm, key_norm, value_norm;  // of each head, before it is rotated
    int64_t heads, kv_heads, head;          // head: numbers of one
    const float *rotary;  // (max_positions, head): cosines, then sines of each position; null: none
    int64_t window;       // tokens see others at most this many positions away; negative: all
    int64_t causal;       // tokens see only themselves and those before them
    const float *relative_keys, *relative_queries;  // packed (heads, relative_rows, head) each; null: none (DeBERTa)
    const float *relative_bias;                     // (heads, 2 max_positions - 1) by key minus query; null: none
    const WordStep *word_step;                      // null: none; pre-norm only
    const Convolution *convolution;                 // null: none; post-norm only
    double scale;                                   // what leaves the block is multiplied by it; pre-norm only

    int64_t query_width() const { return heads * head; }
    int64_t qkv_width() const { return (heads + 2 * kv_heads) * head; }
};

struct Network {
    const float *word, *positions;
    const int32_t *relative_index;  // (2 max_positions - 1,): the row of relative_keys for query minus key position
    const Linear *projection;       // null: the table is as wide as the network
    const Linear *output;           // after the last norm; null: none
    const Block *blocks;
    Norm embedding_norm, final_norm;
    int64_t block_count, table_width, width, ffn_width, activation, max_positions, prenorm, gated;
    int64_t relative_rows;
    double word_scale;              // word vectors are multiplied by it
    int64_t padding;                // the id of a token that takes no position; negative: none
    const float *padding_position;  // what is added to that token instead
};
}

// Queries of a head that are answered together: keys and values are fetched once for all of them.
#define ATTENTION_ROWS (4 * TILE_ROWS)

// Bytes of one column of the values of a head in bfloat16. Their product may begin at any pair of tokens and takes whole
// steps: one more step of zeros stands behind the last token.
static inline int64_t narrow_values(int64_t tokens) { return row_bytes<Bfloat16>(tokens) + Bfloat16::STEPS * 4; }

// Buffers of one call, cut out of the caller's scratch memory.
struct Scratch {
    float *x, *qkv, *context, *wide, *keys, *values, *scores, *relative_keys, *relative_queries, *step, *low;
    float *hidden, *words, *beside;  // null where the network has no output, no word step, no convolution
    char *narrow, *narrow_rows;      // the inputs of a product in int8 or bfloat16; those of the products of a head
    int64_t bytes;

    // `rows` tokens together, `tokens` in the longest text.
    Scratch(const Network &net, int64_t rows, int64_t tokens, void *memory) : bytes(0) {
        auto most = [](int64_t a, int64_t b) { return a > b ? a : b; };
        int64_t queries = 0, all_heads = 0, head = 0, inner = most(net.ffn_width, most(net.table_width, net.width));
        bool word_steps = false, convolutions = false;
        for (int64_t i = 0; i < net.block_count; i++) {
            const Block &block = net.blocks[i];
            queries = most(queries, block.query_width());
            all_heads = most(all_heads, block.qkv_width());
            head = most(head, block.head);
            if (block.word_step) queries = most(queries, block.word_step->words.outputs);
            if (block.convolution) inner = most(inner, block.convolution->linear.inputs);
            word_steps |= block.word_step != nullptr;
            convolutions |= block.convolution != nullptr;
        }
        int64_t widest = most(inner, queries);
        char *base = (char *)memory;
        auto take = [&](int64_t size) {
            char *at = base ? base + bytes : nullptr;  // null: only the size is needed
            bytes += round_up(size, 64);
            return at;
        };
        x = (float *)take(rows * net.width * 4);
        context = (float *)take(rows * queries * 4);
        // qkv and the feed-forward's inner vectors are never alive together
        qkv = wide = (float *)take(rows * most(all_heads, widest) * 4);
        keys = (float *)take(most(head * 4, row_bytes<Bfloat16>(head)) * round_up(tokens, LANES));
        values = (float *)take(most(tokens * 4, narrow_values(tokens)) * round_up(head, LANES));
        scores = (float *)take(ATTENTION_ROWS * round_up(tokens, LANES) * 4);
        relative_keys = (float *)take(ATTENTION_ROWS * net.relative_rows * 4);
        relative_queries = (float *)take(net.relative_rows ? tokens * net.relative_rows * 4 : 0);
        step = (float *)take(rows * 4);
        low = (float *)take(rows * 4);
        narrow = take(round_up(rows, AMX_ROWS) * most(row_bytes<Int8>(widest), row_bytes<Bfloat16>(widest)));
        narrow_rows = take(round_up(ATTENTION_ROWS, AMX_ROWS) * most(row_bytes<Bfloat16>(head), row_bytes<Bfloat16>(tokens)));
        hidden = net.output ? (float *)take(rows * net.width * 4) : nullptr;
        words = word_steps ? (float *)take(rows * net.width * 4) : nullptr;
        beside = convolutions ? (float *)take(rows * net.width * 4) : nullptr;
    }
};

// y = norm(x + extra); extra may be null, and without a norm y is the sum. Mean first, then the squared distances from it.
static void add_and_norm(const float *x, const float *extra, float *y, int64_t n, const Norm &norm) {
    float total = sum_over(n, [&](Vec &sum, int64_t i, int64_t count) {
        Vec v = extra ? load_some(x + i, count) + load_some(extra + i, count) : load_some(x + i, count);
        store_some(y + i, v, count);
        sum += v;
    });
    if (!norm.weight) return;
    float mean = norm.rms ? 0.0f : total / (float)n;
    float squares = sum_over(n, [&](Vec &sum, int64_t i, int64_t count) {
        Vec v = keep_some(load_some(y + i, count) - mean, count);
        sum = fused(v, v, sum);
    });
    float spread = 1.0f / std::sqrt(squares / (float)n + (float)norm.epsilon);
    for_lanes(n, [&](int64_t i, int64_t count) {
        Vec v = (load_some(y + i, count) - mean) * spread * load_some(norm.weight + i, count);
        store_some(y + i, norm.bias ? v + load_some(norm.bias + i, count) : v, count);
    });
}
