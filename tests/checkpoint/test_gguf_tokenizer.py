"""Tokenizers are made of the vocabulary of a GGUF file, with the special tokens that it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gemel.errors import ModelError

gguf = pytest.importorskip("gguf", reason="needs the extra gguf")

from gemel.checkpoint.gguf_file import gguf_tokenizer  # noqa: E402 - after the skip
from gguf_models import add_setting, closed  # noqa: E402 - after the skip

LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.!'", "\u0120", "\u010a"]
BYTES = {**dict.fromkeys(LETTERS, 1), "<s>": 3, "</s>": 3, "<x>": 4}
MERGES = ["1 2", "12 3", "123 4", "i n", "\u0120 a"]


def made(path: Path, model: str, tokens: dict[str, int], **settings: Any) -> Tokenizer:
    """The tokenizer of a file with these tokens, by their types."""
    writer = gguf.GGUFWriter(path / "model.gguf", "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(tokens.values()))
    for key, value in settings.items():
        add_setting(writer, key, value)
    return gguf_tokenizer(closed(writer, path / "model.gguf"))


def byte_bpe(path: Path, pre: str, **settings: Any) -> Tokenizer:
    tokens = dict(BYTES)
    for merge in MERGES:
        tokens.setdefault(merge.replace(" ", ""), 1)
    ids = {"bos_token_id": list(tokens).index("<s>"), "eos_token_id": list(tokens).index("</s>")}
    return made(path, "gpt2", tokens, **{"pre": pre, "merges": MERGES, **ids, **settings})


@pytest.mark.parametrize(
    ("pre", "tokens"),
    [
        ("gpt-2", ["1234", "5", "\u0120a", "b", "'", "s"]),
        ("smollm", ["1", "2", "3", "4", "5", "\u0120a", "b", "'", "s"]),
        ("qwen2", ["1", "2", "3", "4", "5", "\u0120a", "b", "'", "s"]),
        ("llama-bpe", ["<s>", "123", "4", "5", "\u0120a", "b", "'", "s"]),
        ("tekken", ["<s>", "1", "2", "3", "4", "5", "\u0120a", "b", "'", "s"]),
        ("modern-bert", ["1234", "5", "\u0120a", "b", "'", "s"]),
    ],
)
def test_byte_level_bpe_splits_as_the_file_names_it(tmp_path, pre, tokens):
    assert byte_bpe(tmp_path, pre).encode("12345 ab's").tokens == tokens


def test_words_of_the_vocabulary_are_whole_where_merges_are_ignored(tmp_path):
    words = {**BYTES, "cab": 1}
    assert made(tmp_path, "gpt2", words, pre="gpt-2", merges=[]).encode("cab").tokens == ["c", "a", "b"]
    llama = made(tmp_path, "gpt2", words, pre="llama-bpe", merges=[], add_bos_token=False)
    assert llama.encode("cab").tokens == ["cab"]


@pytest.mark.parametrize(
    ("pre", "settings", "before", "after"),
    [
        ("gpt-2", {}, [], []),
        ("llama-bpe", {}, ["<s>"], []),
        ("llama-bpe", {"add_bos_token": False}, [], []),
        ("qwen2", {"add_eos_token": True}, [], ["</s>"]),
        (
            "modern-bert",
            {"add_bos_token": True, "add_eos_token": True, "add_sep_token": True},
            ["<s>"],
            ["</s>"],
        ),
    ],
)
def test_ends_of_byte_level_bpe_are_those_of_the_file_or_of_llama_cpp(tmp_path, pre, settings, before, after):
    assert byte_bpe(tmp_path, pre, **settings).encode("b").tokens == [*before, "b", *after]


def test_special_tokens_in_a_text_are_found(tmp_path):
    tokens = byte_bpe(tmp_path, "gpt-2").encode("b<x>in</s>").tokens
    assert tokens == ["b", "<x>", "in", "</s>"]


PIECES = {"<unk>": 2, "<s>": 3, "</s>": 3, "<0xC3>": 6, "<0xA9>": 6, "\u2581": 1, "a": 1, "b": 1, "c": 1, "ab": 1,
          "abc": 1, "bc": 1, "\u2581a": 1, "\n\n": 4}  # fmt: skip
SCORES = [0.0, 0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -3.0, -2.0, -1.0, -4.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, ["<s>", "\u2581", "abc", "\u2581", "<0xC3>", "<0xA9>", "\n\n", "\u2581", "bc"]),
        ({"add_space_prefix": False}, ["<s>", "abc", "\u2581", "<0xC3>", "<0xA9>", "\n\n", "bc"]),
        ({"add_bos_token": False, "add_eos_token": True},
         ["\u2581", "abc", "\u2581", "<0xC3>", "<0xA9>", "\n\n", "\u2581", "bc", "</s>"]),
    ],
    ids=["defaults", "no-space", "ends"],
)  # fmt: skip
def test_pieces_with_the_best_score_are_merged_first(tmp_path, settings, tokens):
    tokenizer = made(tmp_path, "llama", PIECES, scores=SCORES, **settings)
    assert tokenizer.encode("abc \u00e9\n\nbc").tokens == tokens


def test_unigram_takes_the_most_probable_pieces(tmp_path):
    words = {
        "<pad>": 3,
        "</s>": 3,
        "<unk>": 2,
        "\u2581ab": 1,
        "\u2581a": 1,
        "b": 1,
        "c": 1,
        "bc": 1,
        "\u2581": 1,
    }
    scores = [0.0, 0.0, 0.0, -5.0, -2.0, -2.0, -1.0, -2.5, -3.0]
    settings = {"scores": scores, "add_space_prefix": True, "remove_extra_whitespaces": True}
    tokenizer = made(tmp_path, "t5", words, **settings)
    assert tokenizer.encode("  abc   ac xyz ").tokens == [
        "\u2581a", "bc", "\u2581a", "c", "\u2581", "xyz", "</s>"
    ]  # fmt: skip
    assert tokenizer.encode("xyz").ids == [8, 2, 1]
    assert made(tmp_path, "t5", words, scores=scores, add_eos_token=False).encode("bc").tokens == ["bc"]


WORDS = {
    "[PAD]": 3,
    "[UNK]": 3,
    "[CLS]": 3,
    "[SEP]": 3,
    "\u2581the": 1,
    "\u2581caf\u00e9": 1,
    "\u2581cafe": 1,
    "s": 1,
}


def test_wordpiece_follows_the_case_of_the_vocabulary_or_the_file(tmp_path):
    def tokens(words: dict[str, int], **settings: Any) -> list[str]:
        return made(tmp_path, "bert", words, **settings).encode("The Caf\u00e9s").tokens

    assert tokens(WORDS) == ["[CLS]", "the", "cafe", "##s", "[SEP]"]
    assert tokens({**WORDS, "\u2581The": 1}) == ["[CLS]", "The", "[UNK]", "[SEP]"]
    kept = {"normalizer.lowercase": True, "normalizer.strip_accents": False}
    kept = {f"tokenizer.ggml.{key}": value for key, value in kept.items()}
    assert tokens({**WORDS, "\u2581The": 1}, **kept) == ["[CLS]", "the", "caf\u00e9", "##s", "[SEP]"]


def test_wordpiece_takes_its_ends_from_the_file(tmp_path):
    words = {"<p>": 3, "<u>": 3, "<c>": 3, "<e>": 3, "\u2581a": 1}
    ids = {"bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    assert made(tmp_path, "bert", words, **ids).encode("a b").tokens == ["<c>", "a", "<u>", "<e>"]


@pytest.mark.parametrize(
    ("model", "tokens", "settings", "message"),
    [
        ("rwkv", BYTES, {}, r"of the kind 'rwkv'\. Read from GGUF files: bert, gpt2, llama, t5\. Take"),
        ("gpt2", BYTES, {"pre": "chameleon"}, r"'chameleon' is not supported, only gpt-2.*Take the safetensors"),
        ("gpt2", BYTES, {}, "pre-tokenizer None is not supported"),
        ("gpt2", BYTES, {"pre": "llama-bpe"}, r"need the token of 'tokenizer\.ggml\.bos_token_id', which is None"),
        ("gpt2", BYTES, {"pre": "gpt-2", "add_eos_token": True, "eos_token_id": 900}, "which is 900, and there are 44"),
        ("gpt2", BYTES, {"pre": "gpt-2", "merges": ["a zz"]}, "a vocabulary that is no tokenizer"),
        ("gpt2", BYTES, {"pre": "gpt-2", "token_type": [1]}, "types for 1"),
        ("llama", PIECES, {"scores": [0.0]}, "14 tokens, but scores for 1"),
        ("llama", {}, {}, "has no tokens"),
        ("bert", {"\u2581a": 1}, {}, r"tokenizer\.ggml\.unknown_token_id"),
        ("llama", PIECES, {"scores": SCORES, "add_bos_token": 1}, "is 1, not true or false"),
    ],
)  # fmt: skip
def test_what_would_give_other_tokens_is_refused(tmp_path, model, tokens, settings, message):
    with pytest.raises(ModelError, match=message):
        made(tmp_path, model, tokens, **settings)
