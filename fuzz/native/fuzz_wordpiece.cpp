// WordPiece over a vocabulary, rules and texts that the fuzzer chooses. Sanitizers watch the memory; the ids must be
// those of a search through the whole vocabulary, and a text must have the same ids alone and among others.
#include <string>

#include "input.h"
#include "kernel.cpp"

struct Vocabulary {  // exact sizes, so that an access one past the end is detected
    std::vector<std::string> pieces;
    std::vector<char> letters;
    std::vector<PieceSlot> slots;
    PieceTable table = {};

    Vocabulary(Input &in, long count, int first_id) {
        std::vector<int64_t> starts = {0};
        std::vector<int32_t> ids;
        for (long i = 0; i < count; i++) {
            std::string piece;
            for (long j = in.upto(3); j >= 0; j--) piece += (char)('a' + in.upto(3));
            letters.insert(letters.end(), piece.begin(), piece.end());
            starts.push_back((int64_t)letters.size());
            ids.push_back(first_id + (int)i);
            pieces.push_back(piece);
            if ((int64_t)piece.size() > table.longest) table.longest = (int64_t)piece.size();
        }
        table.size = 1;
        while (table.size <= count) table.size *= 2;
        slots.resize(table.size);
        table.slots = slots.data();
        table.letters = letters.data();
        gemel_fill_pieces(&table, starts.data(), ids.data(), count);
    }

    // The first of equal pieces; -1: none.
    int find(const std::string &word) const {
        for (size_t i = 0; i < pieces.size(); i++)
            if (pieces[i] == word) return (int)i;
        return -1;
    }
};

static const int UNKNOWN = 1000, REST = 500;

static void slow_word(const Vocabulary &first, const Vocabulary &rest, const std::string &word, size_t most, std::vector<int> &out) {
    const size_t begin = out.size();
    for (size_t start = 0; start < word.size() && word.size() <= most;) {
        const Vocabulary &own = start ? rest : first;
        size_t taken = word.size() - start;
        int id = -1;
        for (; taken && (id = own.find(word.substr(start, taken))) < 0;) taken--;
        if (!taken) break;
        out.push_back(id + (start ? REST : 0));
        start += taken;
        if (start == word.size()) return;
    }
    out.resize(begin);
    if (!word.empty()) out.push_back(UNKNOWN);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Input in = {data, size};
    Vocabulary first(in, in.upto(12), 0), rest(in, in.upto(12), REST);
    std::vector<uint8_t> kinds(128, LETTER);
    std::vector<char> lower(128);
    for (int i = 0; i < 128; i++) lower[i] = (char)i;
    lower['A'] = 'a';
    kinds[' '] = SPACE, kinds['.'] = PUNCTUATION, kinds[1] = REMOVED, kinds['['] = NOT_HERE;
    const WordPieces pieces = {first.table, rest.table, kinds.data(), lower.data(), 1 + in.upto(MOST_LETTERS - 1), UNKNOWN};
    std::vector<std::string> texts(1 + in.upto(4));
    std::vector<int64_t> starts = {0};
    std::string joined;
    for (auto &text : texts) {
        for (long j = in.upto(in.flag() ? 600 : 12); j; j--) text += "abcdA .\x01["[in.upto(in.flag() ? 8 : 7)];
        if (in.flag()) text += (char)in.byte();
        joined += text;
        starts.push_back((int64_t)joined.size());
    }
    const std::vector<char> letters(joined.begin(), joined.end());
    std::vector<int32_t> ids(joined.size());
    std::vector<int64_t> counts(texts.size());
    gemel_cut_texts(&pieces, letters.data(), starts.data(), (int64_t)texts.size(), ids.data(), counts.data());
    const int32_t *at = ids.data();
    for (size_t i = 0; i < texts.size(); i++) {
        std::vector<int> expected;
        std::string word;
        bool here = true;
        for (char letter : texts[i]) {
            const int kind = (uint8_t)letter < 128 ? kinds[(uint8_t)letter] : NOT_HERE;
            if (kind == NOT_HERE) here = false;
            if (!here) break;
            if (kind == LETTER) word += lower[(uint8_t)letter];
            if (kind == SPACE || kind == PUNCTUATION) slow_word(first, rest, word, (size_t)pieces.most, expected), word.clear();
            if (kind == PUNCTUATION) slow_word(first, rest, std::string(1, letter), (size_t)pieces.most, expected);
        }
        slow_word(first, rest, word, (size_t)pieces.most, expected);
        if (here != (counts[i] >= 0)) wrong("a text is left out, or not");
        if (!here) continue;
        if (std::vector<int>(at, at + counts[i]) != expected) wrong("ids differ from a search through the vocabulary");
        at += counts[i];
    }
    return 0;
}
