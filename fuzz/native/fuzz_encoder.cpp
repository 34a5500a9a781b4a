// The encoder's kernel over sizes that the fuzzer chooses. Sanitizers watch the memory; and a text's hidden states must be
// the same bits alone, with one thread, and in a batch, with several threads.
#include <deque>

#include "input.h"
#include "kernel.cpp"

struct Maker {  // exact sizes, so that an access one past the end is detected
    Input &in;
    int kind;
    std::deque<std::vector<float>> floats = {};
    std::deque<std::vector<char>> bytes = {};

    const float *some(long n, float offset = 0) {
        floats.push_back(in.numbers(n));
        for (float &x : floats.back()) x = x * .5f + offset;
        return floats.back().data();
    }

    Linear linear(long outputs, long inputs) {
        Linear layer = {};
        layer.bias = some(round_up(outputs, 64));
        layer.outputs = outputs;
        layer.inputs = inputs;
        layer.kind = kind;
        bytes.emplace_back(gemel_packed_bytes(outputs, inputs, kind) + 64);
        void *packed = (void *)round_up((long)bytes.back().data(), 64);
        if (kind == INT8) {
            std::vector<int8_t> weight(outputs * inputs);
            for (auto &value : weight) value = (int8_t)(in.number(false) * 127);
            gemel_pack(weight.data(), outputs, inputs, kind, packed);
            layer.scale = some(round_up(outputs, 64), .01f);
            layer.column_sum = some(round_up(outputs, 64));
            layer.even = in.flag() ? some(inputs, 1.5f) : nullptr;
        } else {
            gemel_pack(some(outputs * inputs), outputs, inputs, kind, packed);
        }
        layer.packed = packed;
        return layer;
    }
};

static const int permitted = gemel_runs();  // AMX needs the permission of the operating system

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!permitted) return 0;
    Input in = {data, size};
    const bool modern = in.flag();
    const bool rms = in.flag(), own_head = in.flag(), head_norms = in.flag(), out_norms = in.flag(), causal = in.flag();
    const long kv_heads = 1 + in.upto(2), heads = kv_heads * (1 + in.upto(2)), head = 1 + in.upto(35);
    const long width = own_head ? 1 + in.upto(90) : heads * head, inner = 1 + in.upto(90);
    const long words = 1 + in.upto(40), positions = 1 + in.upto(70), count = in.upto(3), texts = 1 + in.upto(5);
    const long table_width = in.flag() ? 1 + in.upto(40) : width;
    Maker make = {in, (int)in.upto(HAS_BFLOAT16 ? BFLOAT16 : INT8)};
    auto norm = [&](long n) {
        return Norm{make.some(n, 1), !rms && in.flag() ? make.some(n) : nullptr, 1e-5, rms};
    };
    std::vector<Block> blocks(count);
    for (auto &block : blocks) {
        block = {};
        block.qkv = make.linear((heads + 2 * kv_heads) * head, width);
        block.out = make.linear(width, heads * head);
        block.up = make.linear(modern ? 2 * inner : inner, width);
        block.down = make.linear(width, inner);
        block.attention_norm = norm(width);
        block.ffn_norm = norm(width);
        block.window = in.flag() ? in.upto(20) : -1;
        block.causal = causal;
        if (head_norms) block.query_norm = block.key_norm = norm(head);
        if (out_norms) block.attention_out_norm = block.ffn_out_norm = norm(width);
        if (modern && head % 2 == 0) block.rotary = make.some(positions * head);
    }
    Network net = {};
    net.word = make.some(words * table_width);
    net.positions = in.flag() ? make.some(positions * table_width) : nullptr;
    net.relative_bias = !modern && in.flag() ? make.some(heads * (2 * positions - 1)) : nullptr;
    Linear projection;
    if (table_width != width) {
        projection = make.linear(width, table_width);
        net.projection = &projection;
    }
    net.blocks = blocks.data();
    net.block_count = count;
    if (in.flag()) net.embedding_norm = norm(table_width);
    if (modern) net.final_norm = norm(width);
    net.table_width = table_width;
    net.width = width;
    net.heads = heads;
    net.kv_heads = kv_heads;
    net.head = head;
    net.word_scale = in.flag() ? 3.5 : 1;
    net.ffn_width = modern ? 2 * inner : inner;
    net.activation = 1 + in.upto(3);
    net.max_positions = positions;
    net.prenorm = net.gated = modern;

    std::vector<int64_t> starts = {0};
    long longest = 0;
    for (long text = 0; text < texts; text++) {
        long tokens = 1 + in.upto(positions - 1);
        longest = std::max(longest, tokens);
        starts.push_back(starts.back() + tokens);
    }
    std::vector<int32_t> ids(starts.back());
    for (auto &id : ids) id = (int32_t)in.upto(words - 1);
    std::vector<float> hidden(starts.back() * width), alone;
    std::vector<char> memory(gemel_scratch_bytes(&net, starts.back(), longest));
    gemel_hidden(&net, ids.data(), starts.data(), texts, longest, hidden.data(), memory.data(), 1 + (int)in.upto(2));
    for (long text = 0; text < texts; text++) {
        const int64_t own[2] = {0, starts[text + 1] - starts[text]};
        alone.assign(own[1] * width, 0);
        std::vector<char> room(gemel_scratch_bytes(&net, own[1], own[1]));
        gemel_hidden(&net, ids.data() + starts[text], own, 1, own[1], alone.data(), room.data(), 1);
        if (memcmp(alone.data(), hidden.data() + starts[text] * width, alone.size() * sizeof(float)))
            wrong("a text alone has other bits than in a batch");
    }
    return 0;
}
