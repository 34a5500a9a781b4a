// Runs the kernel over odd shapes, in every form, for the compiler's sanitizers to watch: see test_native_sanitized.py.
#include <cstdio>
#include <deque>

#include "kernel.cpp"

struct Maker {  // owns what the structures point to; exact sizes, so that an access one past the end is detected
    std::deque<std::vector<float>> floats;
    std::deque<std::vector<char>> bytes;
    int int8;

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
        bytes.emplace_back(gemel_packed_bytes(outputs, inputs, int8) + 64);
        void *packed = (void *)round_up((long)bytes.back().data(), 64);
        if (int8) {
            std::vector<int8_t> weight(outputs * inputs, 3);
            gemel_pack_int8(weight.data(), outputs, inputs, (int8_t *)packed);
            layer.scale = some(outputs + 64);
            layer.column_sum = some(outputs + 64);
            layer.even = some(inputs, 1.5);
        } else {
            gemel_pack_float(some(outputs * inputs), outputs, inputs, (float *)packed);
        }
        layer.packed = packed;
        return layer;
    }
};

static bool run(int int8, bool modern, long tokens, long texts, long width) {
    const long heads = 4, inner = 104, words = 50, positions = 64;
    Maker make = {{}, {}, int8};
    auto norm = [&] { return Norm{make.some(width), make.some(width), 1e-12}; };
    std::vector<Block> blocks(2);
    for (auto &block : blocks) {
        block = {make.linear(3 * width, width), make.linear(width, width), make.linear(modern ? 2 * inner : inner, width),
                 make.linear(width, inner), norm(), norm(), nullptr, modern ? 4 : -1};
        if (modern && width / heads % 2 == 0) block.rotary = make.some(positions * (width / heads));
    }
    Network net = {};
    net.word = make.some(words * width);
    net.positions = make.some(positions * width);
    net.padding = modern ? -1 : 3;
    net.padding_position = modern ? nullptr : make.some(width);
    net.relative_bias = modern ? nullptr : make.some(heads * (2 * positions - 1));
    net.blocks = blocks.data();
    net.block_count = 2;
    net.embedding_norm = norm();
    if (modern) net.final_norm = norm();
    net.table_width = net.width = width;
    net.heads = heads;
    net.ffn_width = modern ? 2 * inner : inner;
    net.activation = 1 + tokens % 4;
    net.max_positions = positions;
    net.prenorm = net.gated = modern;
    std::vector<int64_t> starts = {0};
    for (int64_t text = 0; text < texts; text++) starts.push_back(starts.back() + (text % 2 ? (tokens + 1) / 2 : tokens));
    const int64_t rows = starts.back();
    std::vector<int32_t> ids(rows);
    for (size_t i = 0; i < ids.size(); i++) ids[i] = i % words;
    std::vector<float> hidden(rows * width);
    std::vector<char> memory(gemel_scratch_bytes(&net, rows, tokens));
    for (int threads : {1, 3})
        gemel_hidden(&net, ids.data(), starts.data(), texts, tokens, hidden.data(), memory.data(), threads);
    for (float x : hidden)
        if (!std::isfinite(x)) return false;
    return true;
}

int main() {
    for (int int8 = 0; int8 <= (HAS_INT8 ? 1 : 0); int8++)
        for (bool modern : {false, true})
            for (long tokens : {1, 2, 7, 16, 17, 33, 50})
                for (long texts : {1, 3, 9})
                    for (long width : {52, 48})
                        if (!run(int8, modern, tokens, texts, width)) return std::puts("not finite"), 1;
    std::puts("clean");
}
