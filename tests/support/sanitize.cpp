// Runs the kernel over odd shapes, in every form: for the compiler's sanitizers to watch (test_native_sanitized.py), and to
// compare processors by the bits of what it computes (test_native_aarch64.py). Texts must have the same bits alone.
#include <cstdio>
#include <deque>

#include "kernel.cpp"

struct Maker {  // owns what the structures point to; exact sizes, so that an access one past the end is detected
    std::deque<std::vector<float>> floats;
    std::deque<std::vector<char>> bytes;
    int kind;

    const float *some(long n, float offset = 0) {
        floats.emplace_back(n);
        for (long i = 0; i < n; i++) floats.back()[i] = ((i * 7919) % 1000) / 1000.f - .5f + offset;
        return floats.back().data();
    }

    Linear linear(long outputs, long inputs) {
        Linear layer = {};
        layer.bias = some(outputs + 64);
        layer.outputs = outputs;
        layer.inputs = inputs;
        layer.kind = kind;
        bytes.emplace_back(gemel_packed_bytes(outputs, inputs, kind) + 64);
        void *packed = (void *)round_up((long)bytes.back().data(), 64);
        if (kind == INT8) {
            std::vector<int8_t> weight(outputs * inputs);
            for (long i = 0; i < outputs * inputs; i++) weight[i] = (int8_t)(i * 7919 % 255 - 127);
            gemel_pack(weight.data(), outputs, inputs, kind, packed);
            layer.scale = some(outputs + 64);
            floats.emplace_back(outputs + 64);
            for (long i = 0; i < outputs * inputs; i++) floats.back()[i / inputs] += weight[i];
            layer.column_sum = floats.back().data();
            layer.even = some(inputs, 1.5);
        } else {
            gemel_pack(some(outputs * inputs), outputs, inputs, kind, packed);
        }
        layer.packed = packed;
        return layer;
    }
};

enum Form { BERT, MODERN, DECODER, GEMMA, DEBERTA };

static bool run(int kind, Form form, long tokens, long texts, long width) {
    const long heads = 4, inner = 104, words = 50, positions = 64, rows_of_relative = 30;
    const bool decoder = form == DECODER || form == GEMMA, gated = form == MODERN || decoder;
    const long between = 28, outputs = 37;
    Maker make = {{}, {}, kind};
    auto norm = [&](long n) { return Norm{make.some(n), decoder ? nullptr : make.some(n), 1e-12, decoder}; };
    auto relative = [&](long head) {  // packed head by head
        const long size = gemel_packed_bytes(rows_of_relative, head, FLOAT32) / 4;
        make.floats.emplace_back(heads * size);
        float *packed = make.floats.back().data();
        for (long h = 0; h < heads; h++)
            gemel_pack(make.some(rows_of_relative * head), rows_of_relative, head, FLOAT32, packed + h * size);
        return packed;
    };
    WordStep word_step = {make.linear(between, width), make.linear(between, width), make.linear(width, between),
                          norm(between), norm(width)};
    Convolution convolution = {make.linear(width, 3 * width), norm(width), 3, 1};
    const Linear output = make.linear(outputs, width);
    std::vector<Block> blocks(2);
    for (auto &block : blocks) {
        const bool other = form == GEMMA && &block == &blocks[1];
        const long kv_heads = other ? 1 : decoder ? 2 : heads, head = other ? 18 : decoder ? 10 : width / heads;
        block = {};
        block.heads = heads;
        block.kv_heads = kv_heads;
        block.head = head;
        block.scale = form == GEMMA ? 0.7 : 1;
        block.qkv = make.linear((heads + 2 * kv_heads) * head, width);
        block.out = make.linear(width, heads * head);
        block.up = make.linear(gated ? 2 * inner : inner, width);
        block.down = make.linear(width, inner);
        block.attention_norm = norm(width);
        block.ffn_norm = norm(width);
        block.window = form == MODERN ? 4 : decoder && &block == &blocks[0] ? 20 : -1;
        block.causal = decoder;
        if (gated && head % 2 == 0) block.rotary = make.some(positions * head);
        if (decoder) {
            block.query_norm = block.key_norm = norm(head);
            block.attention_out_norm = block.ffn_out_norm = norm(width);
        }
        if (form == DEBERTA) {
            block.relative_keys = relative(head);
            block.relative_queries = relative(head);
            if (&block == &blocks[0]) block.convolution = &convolution;
        }
        if (form == GEMMA) {
            block.value_norm = norm(head);
            block.word_step = &word_step;
        }
        if (form == BERT) block.relative_bias = make.some(heads * (2 * positions - 1));
    }
    std::vector<int32_t> index(2 * positions - 1);
    for (long i = 0; i < 2 * positions - 1; i++) index[i] = i * rows_of_relative / (2 * positions - 1);
    Network net = {};
    net.word = make.some(words * width);
    net.positions = gated ? nullptr : make.some(positions * width);
    net.padding = form == BERT ? 3 : -1;
    net.padding_position = form == BERT ? make.some(width) : nullptr;
    net.relative_index = index.data();
    net.relative_rows = form == DEBERTA ? rows_of_relative : 0;
    net.blocks = blocks.data();
    net.block_count = 2;
    if (!decoder) net.embedding_norm = norm(width);
    if (gated) net.final_norm = norm(width);
    net.table_width = net.width = width;
    net.output = form == GEMMA ? &output : nullptr;
    net.ffn_width = gated ? 2 * inner : inner;
    net.activation = 1 + tokens % 4;
    net.max_positions = positions;
    net.word_scale = decoder ? 5.5 : 1;
    net.prenorm = net.gated = gated;
    std::vector<int64_t> starts = {0};
    for (int64_t text = 0; text < texts; text++) starts.push_back(starts.back() + (text % 2 ? (tokens + 1) / 2 : tokens));
    const int64_t rows = starts.back();
    std::vector<int32_t> ids(rows);
    for (size_t i = 0; i < ids.size(); i++) ids[i] = i % words;
    std::vector<float> hidden(rows * (net.output ? outputs : width));
    std::vector<char> memory(gemel_scratch_bytes(&net, rows, tokens));
    for (int threads : {1, 3})
        gemel_hidden(&net, ids.data(), starts.data(), texts, tokens, hidden.data(), memory.data(), threads);
    for (float x : hidden)
        if (!std::isfinite(x)) return std::puts("not finite"), false;
    const int64_t numbers = net.output ? outputs : width;
    for (int64_t text = 0; text < texts; text++) {
        const int64_t alone[] = {0, starts[text + 1] - starts[text]};
        std::vector<float> own(alone[1] * numbers);
        gemel_hidden(&net, ids.data() + starts[text], alone, 1, alone[1], own.data(), memory.data(), 1);
        if (memcmp(own.data(), hidden.data() + starts[text] * numbers, own.size() * 4)) return std::puts("not the same bits"), false;
    }
    uint64_t digest = 14695981039346656037u;  // FNV-1a
    for (const float &x : hidden)
        for (int byte = 0; byte < 4; byte++) digest = (digest ^ ((const uint8_t *)&x)[byte]) * 1099511628211u;
    std::printf("%d %d %ld %ld %ld %016llx\n", kind, form, tokens, texts, width, (unsigned long long)digest);
    return true;
}

static bool run_head(int kind, long tokens, long words, bool sums) {
    const long width = 52, texts = 3;
    Maker make = {{}, {}, FLOAT32};
    Linear dense = make.linear(width, width);
    make.kind = kind;
    Linear table = make.linear(words, width);
    table.even = nullptr;
    WordHead head = {dense, table, {make.some(width, 1), make.some(width), 1e-12, 0},
                     GELU, 2, sums};
    std::vector<int64_t> starts = {0, tokens, tokens + 1, 2 * tokens + 1};
    const float *hidden = make.some(starts[texts] * width);
    std::vector<float> result(texts * words), own(words);
    std::vector<char> memory(gemel_head_bytes(&head, starts[texts]));
    for (int threads : {1, 3})
        gemel_word_weights(&head, hidden, starts.data(), texts, result.data(), memory.data(), threads);
    for (long text = 0; text < texts; text++) {
        const int64_t alone[] = {0, starts[text + 1] - starts[text]};
        gemel_word_weights(&head, hidden + starts[text] * width, alone, 1, own.data(), memory.data(), 1);
        if (memcmp(own.data(), result.data() + text * words, words * 4)) return std::puts("not the same bits"), false;
    }
    uint64_t digest = 14695981039346656037u;
    for (const float &x : result)
        for (int byte = 0; byte < 4; byte++) digest = (digest ^ ((const uint8_t *)&x)[byte]) * 1099511628211u;
    std::printf("head %d %ld %ld %d %016llx\n", kind, tokens, words, sums, (unsigned long long)digest);
    return true;
}

int main() {
    if (!gemel_runs()) return std::puts("clean: this processor announces instructions that it does not run"), 0;
    for (int kind = FLOAT32; kind <= (HAS_BFLOAT16 ? BFLOAT16 : INT8); kind++)
        for (Form form : {BERT, MODERN, DECODER, GEMMA, DEBERTA})
            for (long tokens : {1, 2, 7, 16, 17, 33, 50})
                for (long texts : {1, 3, 9})
                    for (long width : {52, 48})
                        if (!run(kind, form, tokens, texts, width)) return 1;
    for (int kind = FLOAT32; kind <= (HAS_BFLOAT16 ? BFLOAT16 : INT8); kind++)
        for (long tokens : {1, 7, 300})
            for (long words : {1, 47, 100})
                for (bool sums : {false, true})
                    if (!run_head(kind, tokens, words, sums)) return 1;
    std::puts("clean");
}
