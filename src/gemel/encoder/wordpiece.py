"""BERT's WordPiece in C++ for ASCII texts: the ids of the tokenizers library, many times faster.

Texts with other characters, and those with a character at which an added token such as [MASK] starts, are left to the
library. So are tokenizers with other rules than BERT's.
"""

from __future__ import annotations

import ctypes
import string
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from gemel.types import Ids

_LETTER, _SPACE, _PUNCTUATION, _REMOVED, _NOT_HERE = range(5)  # `Character` of native/wordpiece.h
_ASCII = 128
_MOST_LETTERS = 256  # of native/wordpiece.h
_SLOT = np.dtype([("start", np.int64), ("length", np.int32), ("id", np.int32), ("hash", np.uint64)])

_pointer, _number = ctypes.c_void_p, ctypes.c_int64


class _Table(ctypes.Structure):
    _fields_ = (("slots", _pointer), ("letters", _pointer), ("size", _number), ("longest", _number))


class _WordPieces(ctypes.Structure):
    _fields_ = (
        ("first", _Table),
        ("rest", _Table),
        ("kinds", _pointer),
        ("lower", _pointer),
        ("most", _number),
        ("unknown", _number),
    )


class AsciiWordPiece:
    """The ids of ASCII texts, without special tokens. Safe to use from several threads: it never changes."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Mapping[str, int], library: ctypes.CDLL) -> None:
        """`vocabulary`: without added tokens."""
        self._library = library
        model, prefix = tokenizer.model, tokenizer.model.continuing_subword_prefix
        rest = {word.removeprefix(prefix): id_ for word, id_ in vocabulary.items() if word.startswith(prefix)}
        self._kinds, self._lower = _characters(tokenizer)
        self._memory: list[object] = []  # what the structures point to
        self._pieces = _WordPieces(
            self._table(vocabulary),
            self._table(rest),
            self._kinds.ctypes.data,
            self._lower.ctypes.data,
            model.max_input_chars_per_word,
            vocabulary[model.unk_token],
        )

    def _table(self, pieces: Mapping[str, int]) -> _Table:
        words = [word for word in pieces if word and word.isascii()]
        ids = np.array([pieces[word] for word in words], np.int32)
        letters, starts = _joined(words)
        slots = np.zeros(1 << (2 * len(words) + 1).bit_length(), _SLOT)
        table = _Table(slots.ctypes.data, _address(letters), len(slots), max(map(len, words), default=0))
        self._library.gemel_fill_pieces(ctypes.byref(table), starts.ctypes.data, ids.ctypes.data, len(words))
        self._memory += [letters, slots]
        return table

    def content(self, texts: Sequence[str]) -> list[Ids | None]:
        """The token ids of each text; None: the library has to do it."""
        ascii_texts = [text if text.isascii() else "" for text in texts]
        letters, starts = _joined(ascii_texts)
        ids, counts = np.empty(len(letters), np.int32), np.empty(len(texts), np.int64)
        self._library.gemel_cut_texts(
            ctypes.byref(self._pieces),
            letters,
            starts.ctypes.data,
            len(texts),
            ids.ctypes.data,
            counts.ctypes.data,
        )
        ends = np.maximum(counts, 0).cumsum().tolist()
        ids = ids[: ends[-1]].copy() if ends else ids
        return [
            ids[end - count : end] if count >= 0 and text.isascii() else None
            for end, count, text in zip(ends, counts.tolist(), texts, strict=True)
        ]


def ascii_wordpiece(tokenizer: Tokenizer) -> AsciiWordPiece | None:
    """None: the tokenizer has other rules, or nothing was compiled at install."""
    from gemel.encoder.engines.native import any_library

    rules, model, library = tokenizer.normalizer, tokenizer.model, any_library()
    if library is None or type(model) is not WordPiece or type(rules) is not normalizers.BertNormalizer:
        return None
    if type(tokenizer.pre_tokenizer) is not pre_tokenizers.BertPreTokenizer or not rules.clean_text:
        return None
    if not 0 < model.max_input_chars_per_word <= _MOST_LETTERS or not model.continuing_subword_prefix:
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    # Rules may turn other characters into ASCII ones or remove them, so such a token may be found anywhere.
    if model.unk_token not in vocabulary or not all(text.isascii() and text.isprintable() for text in added):
        return None
    if max(vocabulary.values()) > np.iinfo(np.int32).max:
        return None
    return AsciiWordPiece(tokenizer, vocabulary, library)


def _characters(tokenizer: Tokenizer) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """What each character is, and its lower case."""
    kinds = np.full(_ASCII, _LETTER, np.uint8)
    kinds[:32] = kinds[127] = _REMOVED
    kinds[[ord(letter) for letter in " \t\n\r"]] = _SPACE
    kinds[[ord(letter) for letter in string.punctuation]] = _PUNCTUATION
    for token in tokenizer.get_added_tokens_decoder().values():
        for letter in {*token.content[:1].lower(), *token.content[:1].upper()}:
            kinds[ord(letter)] = _NOT_HERE
    lower = np.arange(_ASCII, dtype=np.uint8)
    if tokenizer.normalizer.lowercase:
        upper = [ord(letter) for letter in string.ascii_uppercase]
        lower[upper] += 32
    return kinds, lower


def _joined(texts: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
    """ASCII texts end to end, and where each one starts."""
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
    return "".join(texts).encode("ascii"), starts


def _address(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
