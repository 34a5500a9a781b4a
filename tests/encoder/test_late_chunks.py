"""Late chunking: vectors of passages from one reading of the whole text."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemel
from gemel.encoder.passages import PassageDivider
from gemel.errors import InputError
from tiny import tiny_bert

WORDS = ["a", "man", "is", "playing", "the", "guitar", "while", "dog", "runs", "in", "rain", "and", "sun"]
SHORT = "A man is playing. The dog runs in the rain!\n\nThe sun is here."
LONG = " ".join(f"The {WORDS[n % 13]} {WORDS[(n * 7) % 13]} {WORDS[(n * 5) % 13]} it." for n in range(60))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """It reads 64 tokens."""
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(scope="module")
def prompted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "prompted"
    return gemel.load(tiny_bert(folder, prompts={"query": "how ", "document": "the man "}))


def mean(states):
    return gemel.normalize(states.mean(axis=0, keepdims=True))[0]


def test_a_text_of_one_passage_has_the_vector_of_encode(model, prompted):
    texts = [SHORT, "", "   ", "guitar"]
    for each in (model, prompted):
        made = each.encode_passages(texts, tokens=60)
        assert (made.vectors == each.encode_document(texts)).all()
        assert made.texts.tolist() == [0, 1, 2, 3]
        assert made.spans.tolist() == [[0, len(text)] for text in texts]


def test_a_vector_is_the_mean_of_the_token_vectors_of_its_sentence(model):
    made = model.encode_passages([SHORT], by="sentence")
    assert [SHORT[start:stop] for start, stop in made.spans] == [
        "A man is playing. ",
        "The dog runs in the rain!\n\n",
        "The sun is here.",
    ]
    (tokens,) = model.tokens([SHORT])
    ends = [n for n, token in enumerate(tokens.tokens) if token in (".", "!")]
    states = tokens.vectors
    # [CLS] belongs to the first passage, [SEP] to the last one.
    wanted = [
        states[: ends[0] + 1],
        states[ends[0] + 1 : ends[1] + 1],
        states[ends[1] + 1 :],
    ]
    assert np.allclose(made.vectors, [mean(each) for each in wanted], atol=1e-6)
    assert not np.allclose(
        made.vectors, model.encode_passages([SHORT], by="sentence", chunks="plain").vectors, atol=1e-3
    )


def test_a_long_text_is_read_in_windows(model):
    made = model.encode_passages([LONG], by="sentence")
    windows = model.prepare([LONG], gemel.EncodeOptions(on_long="chunk")).windows[0]
    assert len(windows.pieces) > 4 and len(made) == 60
    # The last passage is in the last window only, with its [SEP].
    states = model.engine.hidden(windows.pieces[-1][None], 1)[0]
    starts = model.tokenizer.offsets(LONG)[:, 0]
    count = int((starts >= made.spans[-1][0]).sum()) + 1
    assert np.allclose(made.vectors[-1], mean(states[-count:]), atol=1e-6)
    # One that begins in the first window and ends in the second has the tokens of each from where they are inner ones.
    border = (len(windows.pieces[0]) - 2 + windows.starts[1]) // 2
    first = int(np.flatnonzero(np.searchsorted(starts, made.spans[:, 1]) > border)[0])
    start, stop = np.searchsorted(starts, made.spans[first])
    both = [model.engine.hidden(piece[None], 1)[0] for piece in windows.pieces[:2]]
    tokens = [
        both[0][1 + n] if n < border else both[1][1 + n - windows.starts[1]] for n in range(start, stop)
    ]
    assert start < border < stop and np.allclose(made.vectors[first], mean(np.stack(tokens)), atol=1e-6)


@pytest.mark.parametrize("by", ["passage", "sentence", "paragraph", "tokens"])
def test_vectors_do_not_depend_on_other_texts(model, by):
    texts = [LONG, SHORT, "guitar", "", LONG[100:700], SHORT]
    together = model.encode_passages(texts, by=by, tokens=20)
    for position, text in enumerate(texts):
        alone = model.encode_passages([text], by=by, tokens=20)
        assert (together.of(position) == alone.vectors).all()
        assert (together.spans[together.texts == position] == alone.spans).all()
    assert (model.encode_passages(texts, by=by, tokens=20, threads=1).vectors == together.vectors).all()


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.sampled_from("ab. !?\n,é日。😀\t"), max_size=150),
    st.integers(2, 20),
    st.sampled_from(["passage", "sentence", "paragraph", "tokens"]),
)
def test_passages_cover_the_text(model, text, tokens, by):
    made = model.encode_passages([text], by=by, tokens=tokens)
    spans = made.spans.tolist()
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    for (_, stop), (start, _) in pairwise(spans):
        assert start <= stop if by == "tokens" else start == stop
    assert np.allclose(np.linalg.norm(made.vectors, axis=1), 1, atol=1e-5)


def test_windows_of_tokens_overlap(model):
    made = model.encode_passages([LONG], by="tokens", tokens=30, overlap=10)
    counts = [len(model.tokenizer.content([LONG[start:stop]])[0]) for start, stop in made.spans]
    assert set(counts[:-1]) == {30} and counts[-1] <= 30
    shared = [LONG[start:stop] for start, stop in zip(made.spans[1:, 0], made.spans[:-1, 1], strict=True)]
    assert all(len(model.tokenizer.content([part])[0]) == 10 for part in shared)


def test_spans_can_be_given(model):
    made = model.encode_passages([SHORT, "guitar"], by=[[(0, 17), (10, 30)], [(0, 6)]])
    assert made.texts.tolist() == [0, 0, 1]
    assert (made.vectors[2] == model.encode(["guitar"])[0]).all()
    with pytest.raises(InputError, match=r"by\[1\] has the span \(0, 7\), but texts\[1\] has 6 characters"):
        model.encode_passages([SHORT, "guitar"], by=[[(0, 17)], [(0, 7)]])


def test_plain_passages_are_encoded_alone(model):
    made = model.encode_passages([SHORT], by="sentence", chunks="plain")
    parts = [SHORT[start:stop] for start, stop in made.spans]
    assert (made.vectors == model.encode(parts)).all()


def test_a_prompt_belongs_to_the_first_passage(prompted):
    made = prompted.encode_passages([SHORT], by="sentence")
    (tokens,) = prompted.tokens([SHORT], prompt_name="document")
    end = tokens.tokens.index(".")
    assert np.allclose(made.vectors[0], mean(tokens.vectors[: end + 1]), atol=1e-6)


def test_other_options_are_those_of_encode(model):
    small = model.encode_passages([LONG], dim=8, output="float16")
    assert small.vectors.shape[1] == 8 and small.vectors.dtype == np.float16
    assert model.encode_passages([]).vectors.shape == (0, model.dim)
    assert repr(small).startswith("PassageVectors(vectors=float16")


def test_other_poolings_are_refused(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "cls", pooling="cls"))
    with pytest.raises(InputError, match="late chunking needs a model with mean pooling, but cls has cls"):
        model.encode_passages([SHORT])
    assert len(model.encode_passages([SHORT], chunks="plain")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "page"}, "by must be one of"),
        ({"chunks": "early"}, "chunks must be one of"),
        ({"tokens": 0}, "tokens must be"),
        ({"overlap": 3}, "overlap is for by='tokens'"),
        ({"by": "tokens", "tokens": 8, "overlap": 8}, "overlap must be less than tokens, 8"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        PassageDivider(**{"by": "passage", **options})
