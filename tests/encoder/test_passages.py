"""Long texts as passages: nothing lost, nothing too long, and split at natural boundaries."""

import re
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import gemel
from gemel.encoder.passages import Divider, split, split_texts
from gemel.encoder.tokenizer import TextPreparer, TextTokenizer
from gemel.errors import InputError
from tiny import tiny_bert, tiny_tokenizer

TEXT = (
    "The cat sat. The dog ran! Did it rain?\nIt did.\n\nA new day began, and the sun “rose.” Then it set.\n"
)


def words(text):
    """Each word and each punctuation character is a token."""
    result = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
    return np.array(result, dtype=np.int64).reshape(-1, 2)


def characters(text):
    """Each character is a token, whitespace too."""
    return np.array([(i, i + 1) for i in range(len(text))], dtype=np.int64).reshape(-1, 2)


def spaced(text):
    """A word includes the whitespace before it, as in SentencePiece."""
    result = [match.span() for match in re.finditer(r"\s*\w+|\s*[^\w\s]", text)]
    return np.array(result, dtype=np.int64).reshape(-1, 2)


def letters(text):
    """Only some characters are in a token, as where a tokenizer drops what it does not know."""
    result = [match.span() for match in re.finditer(r"ab|a|b|!", text)]
    return np.array(result, dtype=np.int64).reshape(-1, 2)


def bytes_of(text):
    """Each byte is a token: a character has up to four, all at one offset."""
    result = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
    return np.array(result, dtype=np.int64).reshape(-1, 2)


def passages(text, token_offsets, room):
    return [span.of(text) for span in split(text, token_offsets(text), room)]


READABLE = st.text(st.sampled_from("ab. !?\n,é日本。😀\t'”"), max_size=200)


@settings(max_examples=300, deadline=None)
@given(READABLE, st.integers(1, 30), st.sampled_from([words, characters, spaced, letters]))
def test_passages_cover_the_text_and_fit(text, room, token_offsets):
    parts = passages(text, token_offsets, room)
    assert "".join(parts) == text
    assert all(parts) or parts == [""]
    assert all(len(token_offsets(part)) <= room for part in parts)


@settings(max_examples=200, deadline=None)
@given(READABLE, st.integers(1, 12))
def test_a_character_is_never_split_and_the_rest_fits(text, room):
    parts = passages(text, bytes_of, room)
    assert "".join(parts) == text
    assert all(len(bytes_of(part)) <= room or len(part) == 1 for part in parts)


def test_a_text_that_fits_is_one_passage():
    assert passages(TEXT, words, 100) == [TEXT]
    assert passages("", words, 3) == [""]
    assert passages(" \n ", words, 3) == [" \n "]


def test_passages_end_at_paragraphs_if_they_can():
    first, second = TEXT.split("\n\n")
    assert passages(TEXT, words, 20) == [first + "\n\n", second]


def test_otherwise_passages_end_at_sentences():
    assert passages(TEXT, words, 9) == [
        "The cat sat. The dog ran! ",
        "Did it rain?\nIt did.\n\n",
        "A new day began, and the sun ",
        "“rose.” Then it set.\n",
    ]


def test_otherwise_passages_end_at_words():
    assert passages("one two three four five", words, 2) == ["one two ", "three four ", "five"]
    assert passages("one two three four five", spaced, 2) == ["one two ", "three four ", "five"]


def test_a_title_is_kept_with_its_text():
    text = "Title\n\n" + "word " * 30
    assert passages(text, words, 20)[0] == "Title\n\n" + "word " * 19


def test_an_endless_word_is_split():
    assert passages("abcdefgh ij", characters, 3) == ["abc", "def", "gh ", "ij"]


def test_characters_outside_of_tokens_stay_with_their_neighbors():
    assert passages("é ab ab ab", letters, 1) == ["é ab ", "ab ", "ab"]
    assert passages("é aaaa", letters, 3) == ["é ", "aaa", "a"]
    assert passages("é é é", letters, 1) == ["é é é"]


def test_scripts_without_spaces_are_split_at_sentences_or_anywhere():
    assert passages("今日は雨です。明日は晴れです。", characters, 10) == [
        "今日は雨です。",
        "明日は晴れです。",
    ]
    assert passages("今日は雨です", characters, 4) == ["今日は雨", "です"]


# With tokenizers.


def word_piece(folder):
    tiny_tokenizer(folder / "tokenizer.json")
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def byte_level(folder):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT] * 20, trainer)
    return made


def unigram(folder):
    pieces = [("<unk>", 0.0), ("▁", -2.0)] + [(c, -3.0) for c in "abcdehinorstTA.,!?"]
    pieces += [("▁the", -1.0), ("▁cat", -1.0), ("at", -1.5), ("ran", -1.5), ("the", -1.2), ("th", -1.1)]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, False))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.normalizer = tokenizers.normalizers.NFKC()
    return made


@pytest.fixture(params=[word_piece, byte_level, unigram], scope="module")
def tokenizer(request, tmp_path_factory):
    return TextTokenizer(request.param(tmp_path_factory.mktemp("tokenizer")), special=False)


SENTENCES = st.lists(
    st.sampled_from(
        ["the cat", "ran.", "unbelievable", "\n\n", "ﬁnal", "Å", "e\u0301", "😀", "日本語", " ", "it's"]
    )
    | st.text(max_size=4),
    max_size=40,
).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(text=SENTENCES, most=st.integers(16, 40), prompt=st.sampled_from(["", "query: ", "the "]))
def test_every_passage_fits_alone(tokenizer, text, most, prompt):
    (passages,) = Divider(tokenizer, prompt, most, parallel=False).divide([text])
    parts = [passage.text for passage in passages]
    assert "".join(parts) == text
    assert all(len(each) <= most for each in tokenizer.content([prompt + part for part in parts]))


def test_offsets_are_those_of_the_content(tokenizer):
    for text in (TEXT, "", "ﬁnal 😀"):
        token_offsets = tokenizer.offsets(text)
        assert len(token_offsets) == len(tokenizer.content([text])[0])
        assert all(0 <= start <= stop <= len(text) for start, stop in token_offsets.tolist())


# With a model.


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    prompts = {"query": "how do i: ", "passage": "the text: "}
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("model"), prompts=prompts, max_length=20))


LONG = ["the cat is sleeping. " * 30, "x" * 500, "", "hello world", "日本語" * 40, "a\n\nb\n\n" * 40]


@pytest.mark.parametrize("tokens", [None, 10, 20])
def test_no_passage_of_a_model_is_cut(model, tokens):
    divided = model.passages(LONG, tokens=tokens)
    assert ["".join(parts) for parts in divided] == LONG
    parts = [part for each in divided for part in each]
    report = model.encode_report(parts, prompt_name="passage")
    assert len(report.truncated) == 0
    assert report.tokens.max() <= (tokens or 20)
    assert divided[2:4] == [[""], ["hello world"]]
    assert len(divided[0]) > 1


def test_a_shorter_prompt_leaves_more_room(model):
    text = "cat " * 100
    assert len(model.passages([text], prompt="")[0]) < len(model.passages([text])[0])
    assert len(model.passages([text], max_length=12)[0]) > len(model.passages([text])[0])
    assert model.passages([text], gemel.EncodeOptions(prompt="")) == model.passages([text], prompt="")


def test_a_short_text_is_tokenized_once(model, monkeypatch):
    seen = []
    content = TextTokenizer.content
    monkeypatch.setattr(TextTokenizer, "content", lambda s, t, **k: seen.extend(t) or content(s, t, **k))
    monkeypatch.setattr(TextTokenizer, "offsets", lambda s, text: pytest.fail("no offsets are needed"))
    model.passages(["hello world", "a cat"], prompt="")
    assert seen == ["hello world", "a cat"]


def test_passages_that_the_model_cannot_read_are_refused(model):
    with pytest.raises(InputError, match="passages of 21 tokens would be cut: the model reads 20"):
        model.passages(["a"], tokens=21)
    with pytest.raises(InputError, match=r"leave no room .* which take 8\. Use at least 9"):
        model.passages(["a"], tokens=4)
    with pytest.raises(InputError, match="at least 1, got 0"):
        model.passages(["a"], tokens=0)
    with pytest.raises(InputError, match="one string"):
        model.passages("a")


def test_a_model_without_a_limit_splits_nothing_unless_requested(tmp_path):
    checkpoint = replace(gemel.load(tiny_bert(tmp_path, max_length=64)).checkpoint, max_length=None)
    texts, options = ["cat " * 500], gemel.EncodeOptions()
    assert len(gemel.Model(checkpoint).passages(texts)[0]) == 4  # it still has 128 positions
    endless = TextPreparer(replace(checkpoint, config={}))
    assert split_texts(endless, texts, options, None) == [texts]
    assert len(split_texts(endless, texts, options, 102)[0]) == 5
