// A transformer over packed weights, post-norm or pre-norm: token ids in, hidden states out.
//
// No state: the caller owns every buffer and may call from many threads at once.
// Texts of any length are stored one after the other, so there is no padding and no mask. The rows of a matrix product
// are independent and attention stays within a text, so the bits of a text do not depend on the other texts of a batch.
#include <string>

#include "attention.h"
#include "head.h"
#include "processor.h"
#include "team.h"
#include "wordpiece.h"
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT int gemel_has_bfloat16() { return HAS_BFLOAT16; }

// The levels that the processor announces, by their names in `engines/native.py`.
EXPORT const char *gemel_processor_levels() {
    static const std::string names = [] {
        std::string found = "baseline";
        auto add = [&](const char *name, bool announced) { return announced ? (found += ' ', found += name, true) : false; };
#if defined(__x86_64__)
        const Processor has;
        if (add("avx2", has.avx2)) add("avxvnni", has.avxvnni);
        if (add("avx512", has.avx512) && add("avx512vnni", has.avx512vnni) && add("avx512bf16", has.avx512bf16))
            add("amx", has.amx);
#elif defined(__aarch64__) && defined(__linux__)
        const unsigned long more = getauxval(AT_HWCAP2);
        add("neon-dotprod", getauxval(AT_HWCAP) & HWCAP_ASIMDDP);
        add("neon-i8mm", more & HWCAP2_I8MM && more & HWCAP2_BF16);
#elif defined(__aarch64__) && defined(__APPLE__)
        auto has = [](const char *feature) {
            int value = 0;
            size_t size = sizeof(value);
            return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value;
        };
        add("neon-dotprod", has("hw.optional.arm.FEAT_DotProd"));
        add("neon-i8mm", has("hw.optional.arm.FEAT_I8MM") && has("hw.optional.arm.FEAT_BF16"));
#endif
        return found;
    }();
    return names.c_str();
}

// Whether what this library was compiled for really runs here, where announcing it is not enough.
EXPORT int gemel_runs() {
#if defined(HAS_AMX) && !defined(GEMEL_EMULATE_AMX)
    return amx_works();
#else
    return 1;
#endif
}

// Bytes of a packed weight matrix.
EXPORT int64_t gemel_packed_bytes(int64_t outputs, int64_t inputs, int kind) {
    if (kind == INT8) return panel_bytes<Int8>(inputs, outputs);
    if (kind == BFLOAT16) return panel_bytes<Bfloat16>(inputs, outputs);
    return round_up(outputs, LANES) * inputs * (int64_t)sizeof(float);
}

// `weight` is int8 for the kind INT8, float32 for the others.
EXPORT void gemel_pack(const void *weight, int64_t outputs, int64_t inputs, int kind, void *packed) {
    if (kind == INT8) return pack_int8((const int8_t *)weight, outputs, inputs, (int8_t *)packed);
    if (kind == BFLOAT16) return pack_bfloat16((const float *)weight, outputs, inputs, (uint16_t *)packed);
    pack_float((const float *)weight, outputs, inputs, (float *)packed);
}
}

// Rows that were made narrow, by the panels of their form.
template <class Form>
static void narrow_product(const Linear &layer, const Product &p, int64_t rows, Team &team) {
    team.run(panels_of(layer.outputs), [&](long panel) {
        const char *packed = (const char *)layer.packed + panel * panel_bytes<Form>(layer.inputs, TILE_COLUMNS);
        long column = panel * TILE_COLUMNS;
        narrow_panel<Form>(p, packed, row_bytes<Form>(layer.inputs) / 4, rows, column, layer.outputs - column);
    });
}

static void linear(const Linear &layer, const float *x, float *y, int64_t rows, int activation, Scratch &s, Team &team) {
    Product p = {};
    p.y = y;
    p.y_stride = layer.outputs;
    p.bias = layer.bias;
    p.activation = activation;
    p.a_small = s.narrow;
    if (layer.kind == INT8) {
        p.a_stride = row_bytes<Int8>(layer.inputs);
        p.step = s.step;
        p.low = s.low;
        p.scale = layer.scale;
        p.column_sum = layer.column_sum;
        for (int64_t r = 0; r < rows; r++)
            quantize_row(x + r * layer.inputs, layer.even, layer.inputs, s.narrow + r * p.a_stride, s.step + r, s.low + r);
        narrow_product<Int8>(layer, p, rows, team);
    } else if (layer.kind == BFLOAT16) {
        p.a_stride = row_bytes<Bfloat16>(layer.inputs);
        for (int64_t r = 0; r < rows; r++) bfloat16_row(x + r * layer.inputs, layer.inputs, s.narrow + r * p.a_stride);
        narrow_product<Bfloat16>(layer, p, rows, team);
    } else {
        p.a = x;
        p.a_stride = layer.inputs;
        team.run(panels_of(layer.outputs), [&](long panel) {
            float_panel(p, (const float *)layer.packed, rows, layer.outputs, layer.inputs, panel, 0, layer.inputs);
        });
    }
}

// (rows, 2 n) -> (rows, n), in place: the first half activated, times the second half.
static void gate(float *x, int64_t rows, int64_t n, int activation) {
    for (int64_t r = 0; r < rows; r++) {
        const float *active = x + r * 2 * n, *factor = active + n;
        float *y = x + r * n;  // never ahead of what is still to be read
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) store(y + i, activate(load(active + i), activation) * load(factor + i));
        for (; i < n; i++) y[i] = activate(all(active[i]), activation)[0] * factor[i];
    }
}

// The rows of `tokens` neighbors side by side, zeros where a text has none: (rows, width) -> (rows, tokens * width).
static void neighbors(const float *x, const int64_t *starts, int64_t texts, int64_t tokens, int64_t width, float *y) {
    for (int64_t text = 0; text < texts; text++)
        for (int64_t r = starts[text]; r < starts[text + 1]; r++)
            for (int64_t at = r - tokens / 2; at <= r + tokens / 2; at++, y += width)
                if (at < starts[text] || at >= starts[text + 1])
                    memset(y, 0, width * 4);
                else
                    memcpy(y, x + at * width, width * 4);
}

extern "C" {

EXPORT int64_t gemel_scratch_bytes(const Network *net, int64_t rows, int64_t longest) {
    return Scratch(*net, rows, longest, nullptr).bytes + 64;
}

// ids (rows,) -> result (rows, width or that of net.output); text i is rows starts[i] to starts[i + 1]. Ids and lengths were checked by the caller.
// `seen`: of each text, how many of its tokens all of them see, from the first; null: all.
EXPORT void gemel_hidden(const Network *network, const int32_t *ids, const int64_t *starts, int64_t texts, int64_t longest,
                         float *result, void *memory, int threads, const int64_t *seen = nullptr) {
    const Network &net = *network;
    TileScope tiles_of_this_thread;
    Team team(threads);
    int64_t rows = starts[texts];
    Scratch s(net, rows, longest, (void *)round_up((int64_t)memory, 64));
    float *hidden = net.output ? s.hidden : result, *table = net.projection ? s.wide : hidden;
    for (int64_t text = 0; text < texts; text++)
        for (int64_t r = starts[text], position = 0; r < starts[text + 1]; r++) {
            const bool padding = net.padding_position && ids[r] == net.padding;
            const float *added = padding         ? net.padding_position
                                 : net.positions ? net.positions + position * net.table_width
                                                 : nullptr;
            position += !padding;
            float *row = table + r * net.table_width;
            add_and_norm(net.word + ids[r] * net.table_width, added, row, net.table_width, net.embedding_norm);
            if (net.word_scale != 1)
                for (int64_t i = 0; i < net.table_width; i++) row[i] *= (float)net.word_scale;
        }
    if (net.projection) linear(*net.projection, table, hidden, rows, NONE, s, team);
    if (s.words) memcpy(s.words, hidden, rows * net.width * 4);
    auto norm_rows = [&](const float *x, const float *extra, float *y, const Norm &norm) {
        for (int64_t r = 0; r < rows; r++) {
            int64_t at = r * net.width;
            add_and_norm(x + at, extra ? extra + at : nullptr, y + at, net.width, norm);
        }
    };
    auto attend = [&](const Block &block, const float *x) {  // x -> s.x
        linear(block.qkv, x, s.qkv, rows, NONE, s, team);
        for (int64_t text = 0; text < texts; text++)
            attention(net, block, s.qkv + starts[text] * block.qkv_width(), s.context + starts[text] * block.query_width(),
                      starts[text + 1] - starts[text], seen ? seen[text] : starts[text + 1] - starts[text], s);
        linear(block.out, s.context, s.x, rows, NONE, s, team);
        if (block.attention_out_norm.weight) norm_rows(s.x, nullptr, s.x, block.attention_out_norm);
    };
    auto feed_forward = [&](const Block &block, const float *x) {  // x -> s.x
        linear(block.up, x, s.wide, rows, net.gated ? NONE : (int)net.activation, s, team);
        if (net.gated) gate(s.wide, rows, net.ffn_width / 2, (int)net.activation);
        linear(block.down, s.wide, s.x, rows, NONE, s, team);
        if (block.ffn_out_norm.weight) norm_rows(s.x, nullptr, s.x, block.ffn_out_norm);
    };
    auto read_words = [&](const WordStep &step) {  // hidden -> s.x
        int64_t inner = step.words.outputs;
        linear(step.words, s.words, s.context, rows, NONE, s, team);
        linear(step.gate, hidden, s.wide, rows, (int)net.activation, s, team);
        for (int64_t r = 0; r < rows; r++) {
            float *factors = s.context + r * inner, *gate = s.wide + r * inner;
            add_and_norm(factors, nullptr, factors, inner, step.words_norm);
            for (int64_t i = 0; i < inner; i++) gate[i] *= factors[i];
        }
        linear(step.out, s.wide, s.x, rows, NONE, s, team);
        norm_rows(s.x, nullptr, s.x, step.norm);
    };
    const Norm none = {nullptr, nullptr, 0, 0};
    for (int64_t i = 0; i < net.block_count; i++) {
        const Block &block = net.blocks[i];
        if (net.prenorm) {
            norm_rows(hidden, nullptr, s.x, block.attention_norm);
            attend(block, s.x);
            norm_rows(s.x, hidden, hidden, none);
            norm_rows(hidden, nullptr, s.x, block.ffn_norm);
            feed_forward(block, s.x);
            norm_rows(s.x, hidden, hidden, none);
            if (block.word_step) {
                read_words(*block.word_step);
                norm_rows(s.x, hidden, hidden, none);
            }
            if (block.scale != 1)
                for (int64_t j = 0; j < rows * net.width; j++) hidden[j] *= (float)block.scale;
        } else {
            if (const Convolution *step = block.convolution) {
                neighbors(hidden, starts, texts, step->tokens, net.width, s.wide);
                linear(step->linear, s.wide, s.beside, rows, (int)step->activation, s, team);
            }
            attend(block, hidden);
            norm_rows(s.x, hidden, hidden, block.attention_norm);
            feed_forward(block, hidden);
            norm_rows(s.x, hidden, hidden, block.ffn_norm);
            if (block.convolution) norm_rows(s.beside, hidden, hidden, block.convolution->norm);
        }
    }
    if (net.final_norm.weight) norm_rows(hidden, nullptr, hidden, net.final_norm);
    if (net.output) linear(*net.output, hidden, result, rows, NONE, s, team);
}

EXPORT int64_t gemel_head_bytes(const WordHead *head, int64_t rows) { return HeadScratch(*head, rows, nullptr).bytes + 64; }

// Hidden states (rows, width) of texts, as for gemel_hidden -> result (texts, words).
EXPORT void gemel_word_weights(const WordHead *head, const float *hidden, const int64_t *starts, int64_t texts, float *result,
                               void *memory, int threads) {
    TileScope tiles_of_this_thread;
    Team team(threads);
    const int64_t rows = starts[texts], width = head->dense.inputs;
    HeadScratch s(*head, rows, (void *)round_up((int64_t)memory, 64));
    Product p = {};
    p.a = hidden;
    p.a_stride = p.y_stride = width;
    p.bias = head->dense.bias;
    p.activation = (int)head->activation;
    p.y = s.rows;
    team.run(panels_of(width), [&](long panel) {
        float_panel(p, (const float *)head->dense.packed, rows, width, width, panel, 0, width);
    });
    for (int64_t r = 0; r < rows; r++) {
        float *row = s.rows + r * width;
        add_and_norm(row, nullptr, row, width, head->norm);
        if (head->table.kind == INT8) quantize_row(row, nullptr, width, s.narrow + r * row_bytes<Int8>(width), s.step + r, s.low + r);
        if (head->table.kind == BFLOAT16) bfloat16_row(row, width, s.narrow + r * row_bytes<Bfloat16>(width));
    }
    memset(result, 0, texts * head->table.outputs * 4);
    team.run(panels_of(head->table.outputs), [&](long panel) { pool_panel(*head, s, starts, texts, panel, result); });
}

// Pieces (count of them, their letters at starts[i] to starts[i + 1]) into a table of empty slots; the first of equal
// ones stays.
EXPORT void gemel_fill_pieces(PieceTable *table, const int64_t *starts, const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const char *letters = table->letters + starts[i];
        const int64_t length = starts[i + 1] - starts[i];
        uint64_t hash = PieceTable::SEED;
        for (int64_t j = 0; j < length; j++) hash = PieceTable::step(hash, letters[j]);
        PieceSlot *slot = length ? table->slot(hash, letters, length) : nullptr;
        if (slot && !slot->length) *slot = {starts[i], (int32_t)length, ids[i], hash};
    }
}

// Texts one after the other -> their ids one after the other, and how many each has; -1: the caller has to do it.
// `ids` has room for as many as there are letters.
EXPORT void gemel_cut_texts(const WordPieces *pieces, const char *letters, const int64_t *starts, int64_t texts, int32_t *ids,
                            int64_t *counts) {
    for (int64_t i = 0; i < texts; i++) {
        counts[i] = cut_text(*pieces, letters + starts[i], starts[i + 1] - starts[i], ids);
        if (counts[i] > 0) ids += counts[i];
    }
}
}
