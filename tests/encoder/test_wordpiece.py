"""The fast WordPiece gives the ids of the tokenizers library, or leaves the text to it."""

import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

import tiny
from gemel.encoder.engines import native
from gemel.encoder.tokenizer import TextTokenizer
from gemel.encoder.wordpiece import ascii_wordpiece

pytestmark = pytest.mark.skipif(native.any_library() is None, reason="no kernel was compiled at install")

VOCABULARY = [
    "[UNK]",
    "un",
    "##aff",
    "##able",
    "aff",
    "a",
    "##a",
    "A",
    "##B",
    "##b",
    "b",
    ".",
    ",",
    "#",
    "##",
]


def wordpiece(vocabulary=VOCABULARY, *, lowercase=True, most=100, **rules):
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=most))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, **rules)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def library_ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def tiny_one(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tiny.tiny_tokenizer(path)
    return Tokenizer.from_file(str(path))


LETTERS = st.text(string.printable + "\x00\x01\x1c\x1f\x7f", max_size=40)
WORDS = st.lists(st.sampled_from(["un", "aff", "able", "a", "B", "ing", "playing", "x", "  ", "[MASK]", "."]))


@given(st.lists(LETTERS | WORDS.map("".join) | st.text(max_size=10), max_size=8))
@settings(max_examples=300, deadline=None)
def test_the_ids_are_those_of_the_library(tiny_one, texts):
    for tokenizer in (tiny_one, wordpiece(), wordpiece(lowercase=False, most=3)):
        fast = ascii_wordpiece(tokenizer).content(texts)
        for text, ids in zip(texts, fast, strict=True):
            assert ids is None or ids.tolist() == library_ids(tokenizer, text), repr(text)
            assert ids is not None or "[" in text or not text.isascii()


@pytest.mark.parametrize("length", [99, 100, 101, 255, 256, 257, 5000])
def test_words_that_are_too_long_are_unknown(length):
    for most in (100, 256):
        tokenizer = wordpiece(most=most)
        [ids] = ascii_wordpiece(tokenizer).content(["a" * length])
        assert ids.tolist() == library_ids(tokenizer, "a" * length)


def test_no_texts_and_empty_texts():
    fast = ascii_wordpiece(wordpiece())
    assert fast.content([]) == []
    assert [ids.tolist() for ids in fast.content(["", " \t", "\x01"])] == [[], [], []]


def test_an_added_token_is_left_to_the_library_wherever_it_may_start():
    tokenizer = wordpiece()
    tokenizer.add_tokens([AddedToken("unaff", normalized=True)])
    fast = ascii_wordpiece(tokenizer)
    assert [ids is None for ids in fast.content(["Unaffable", "a unaff", "a b", "UN"])] == [
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: setattr(tokenizer, "normalizer", normalizers.Lowercase()),
        lambda tokenizer: setattr(tokenizer, "normalizer", normalizers.BertNormalizer(clean_text=False)),
        lambda tokenizer: setattr(tokenizer, "pre_tokenizer", pre_tokenizers.Whitespace()),
        lambda tokenizer: setattr(tokenizer, "model", WordPiece({"a": 0}, unk_token="[UNK]")),
        lambda tokenizer: setattr(
            tokenizer, "model", WordPiece({"[UNK]": 0}, unk_token="[UNK]", max_input_chars_per_word=257)
        ),
        lambda tokenizer: setattr(tokenizer, "model", WordPiece({"[UNK]": 2**31}, unk_token="[UNK]")),
        lambda tokenizer: tokenizer.add_tokens(["été"]),
        lambda tokenizer: tokenizer.add_tokens(["\x01a"]),
    ],
    ids=["no BERT normalizer", "control characters", "other words", "no unknown token", "longer words", "large ids",
         "an added token with accents", "an added token with a control character"],
)  # fmt: skip
def test_other_rules_are_left_to_the_library(change):
    tokenizer = wordpiece()
    change(tokenizer)
    assert ascii_wordpiece(tokenizer) is None


def test_nothing_compiled_means_the_library(monkeypatch):
    monkeypatch.setattr(native, "any_library", lambda: None)
    assert ascii_wordpiece(wordpiece()) is None


def test_many_texts_have_the_ids_that_each_has_alone(tiny_one):
    tokenizer = TextTokenizer(tiny_one)
    texts = [f"playing {number} guitars, {'été' if number % 7 == 0 else '[MASK] x'}" for number in range(600)]
    for one, text in zip(tokenizer.content(texts), texts, strict=True):
        assert np.array_equal(one, tokenizer.content([text])[0])
