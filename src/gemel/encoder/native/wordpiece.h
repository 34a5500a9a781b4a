// WordPiece of ASCII texts: words are split at white space and around punctuation, then cut greedily into the longest
// pieces of the vocabulary. What each character is comes from a table of the caller, who owns all memory.
#pragma once
#include <cstdint>
#include <cstring>

enum Character : uint8_t { LETTER, SPACE, PUNCTUATION, REMOVED, NOT_HERE };

struct PieceSlot {
    int64_t start;  // in the letters of its table
    int32_t length;  // 0: the slot is empty
    int32_t id;
    uint64_t hash;
};

struct PieceTable {
    PieceSlot *slots;
    const char *letters;
    int64_t size;  // a power of two, more than there are pieces
    int64_t longest;

    static uint64_t step(uint64_t hash, char letter) { return (hash ^ (uint8_t)letter) * 0x100000001b3ull; }
    static constexpr uint64_t SEED = 0xcbf29ce484222325ull;

    PieceSlot *slot(uint64_t hash, const char *word, int64_t length) const {
        for (uint64_t at = hash ^ hash >> 32;; at++) {
            PieceSlot *found = slots + (at & (uint64_t)(size - 1));
            if (!found->length) return found;
            if (found->hash == hash && found->length == length && !memcmp(letters + found->start, word, length)) return found;
        }
    }
};

struct WordPieces {
    PieceTable first, rest;  // pieces at the start of a word, and after it
    const uint8_t *kinds;  // (128,) a Character each
    const char *lower;  // (128,)
    int64_t most;  // letters of a word; a longer one is unknown
    int64_t unknown;
};

static const int64_t MOST_LETTERS = 256;

// Writes the ids of one word and returns their end.
static int32_t *cut_word(const WordPieces &v, const char *word, int64_t length, int32_t *out) {
    int32_t *const begin = out;
    uint64_t hashes[MOST_LETTERS];
    for (int64_t start = 0; start < length;) {
        const PieceTable &table = start ? v.rest : v.first;
        const int64_t most = length - start < table.longest ? length - start : table.longest;
        uint64_t hash = PieceTable::SEED;
        for (int64_t i = 0; i < most; i++) hashes[i] = hash = PieceTable::step(hash, word[start + i]);
        int64_t taken = most;
        for (; taken; taken--) {
            const PieceSlot *found = table.slot(hashes[taken - 1], word + start, taken);
            if (found->length) {
                *out++ = found->id;
                break;
            }
        }
        if (!taken) {
            *begin = (int32_t)v.unknown;
            return begin + 1;
        }
        start += taken;
    }
    return out;
}

// The ids of one text, at most one per letter; -1: it has a character that is not for this function.
static int64_t cut_text(const WordPieces &v, const char *text, int64_t size, int32_t *out) {
    int32_t *const begin = out;
    char word[MOST_LETTERS];
    int64_t length = 0;
    const auto end_word = [&] {
        if (length > v.most) *out++ = (int32_t)v.unknown;
        else if (length) out = cut_word(v, word, length, out);
        length = 0;
    };
    for (int64_t i = 0; i < size; i++) {
        const uint8_t letter = (uint8_t)text[i];
        const uint8_t kind = letter < 128 ? v.kinds[letter] : NOT_HERE;
        if (kind == LETTER) {
            if (length < v.most) word[length] = v.lower[letter];
            length++;
        } else if (kind == NOT_HERE) {
            return -1;
        } else if (kind != REMOVED) {
            end_word();
            if (kind == PUNCTUATION) out = cut_word(v, text + i, 1, out);
        }
    }
    end_word();
    return out - begin;
}
