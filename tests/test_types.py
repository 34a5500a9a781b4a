"""Results show themselves in one short line and as a table; models take no new attributes."""

import dataclasses
import inspect

import numpy as np
import pytest

import gemel
from gemel.types import FixedAttributes, ShownResult, short
from tiny import tiny_bert

TEXTS = ["a man is playing guitar", "a woman is playing the flute", "the stock market fell"] * 20
LONG = "<b>bold</b> " + "many words " * 200
RESULTS = [
    name
    for name in gemel.__all__
    if inspect.isclass(getattr(gemel, name))
    and dataclasses.is_dataclass(getattr(gemel, name))
    and not name.endswith("Options")
    and name != "ConfiguredModel"
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "tiny"))


def filled(cls):
    """An instance with a lot in every field."""
    result = object.__new__(cls)
    for field in dataclasses.fields(cls):
        kind = str(field.type)
        large = np.zeros((1000, 384), np.float32)
        value: object = large
        if kind.startswith("str"):
            value = LONG
        elif kind.startswith("int"):
            value = 10**9
        elif kind.startswith("float"):
            value = 1 / 3
        elif kind.startswith(("tuple", "Sequence")):
            value = tuple(range(1000))
        elif kind.startswith(("Mapping", "Json")):
            value = {str(number): number for number in range(1000)}
        object.__setattr__(result, field.name, value)
    return result


@pytest.mark.parametrize("name", RESULTS)
def test_the_repr_of_every_result_is_one_short_line(name):
    cls = getattr(gemel, name)
    assert issubclass(cls, ShownResult), f"{name} must derive from gemel.types.ShownResult"
    line = repr(filled(cls))
    assert line.startswith(f"{name}(")
    assert "\n" not in line
    assert len(line) <= 120


@pytest.mark.parametrize(
    "name", [name for name in RESULTS if getattr(gemel, name)._shown_rows is ShownResult._shown_rows]
)
def test_a_result_without_rows_of_its_own_is_a_table_of_its_fields(name):
    page = filled(getattr(gemel, name))._repr_html_()
    for field in dataclasses.fields(getattr(gemel, name)):
        assert f"<td>{field.name}</td>" in page
    assert len(page) < 10_000
    assert "<b>" not in page


def results(model):
    """One result of each class with rows of its own."""
    vectors = model.encode(TEXTS)
    texts = gemel.search_texts(model, TEXTS, TEXTS)
    yield texts
    yield texts[0]
    yield gemel.find_pairs(model, TEXTS, min_score=-1)
    yield gemel.search(vectors, vectors)
    yield gemel.similar_pairs(vectors, k=50)
    yield gemel.cluster(TEXTS, model=model)
    yield gemel.dedupe(TEXTS, model=model)
    yield gemel.explain(model, TEXTS[0], LONG[:40])
    yield model.encode_report(TEXTS)
    yield model.tokens(TEXTS[:1])[0]
    yield model.encode_passages([LONG] * 30, tokens=20)
    yield gemel.Ranking(np.arange(50), np.ones(50, np.float32), "logit")
    yield gemel.Relations(("yes", "no"), np.ones((50, 2), np.float32))
    scores = gemel.Scores("sts", "data", "spearman", {"spearman": gemel.Score(82.03, 81.0, 83.0)}, 9, "pairs")
    yield scores
    yield gemel.RetrievalComparison((scores,) * 50, ())
    yield gemel.VerifyResult(())
    yield gemel.mine_negatives(model, [("a man", "a man is playing")], TEXTS, k=1, ratio=None)
    yield gemel.MultiVectors(np.ones((50, 4), np.float32), np.arange(51), ("word",) * 50)
    row = np.arange(1, dtype=np.int32), np.ones(1, np.float32)
    yield gemel.SparseVectors.of([row] * 50, ("word",))
    yield gemel.M3Vectors(np.ones((50, 4), np.float32), None, None)
    yield gemel.SparseExplanation(50.0, (gemel.WordMatch("word", 1.0, 1.0, 1.0),) * 50, ())
    yield gemel.LateExplanation(50.0, (gemel.TokenMatch("word", "text", 1.0, 0, 4),) * 50)


def test_a_notebook_shows_a_table_of_the_first_rows(model):
    shown = {type(result).__name__: result._repr_html_() for result in results(model)}
    own = {name for name in RESULTS if getattr(gemel, name)._shown_rows is not ShownResult._shown_rows}
    assert own == set(shown)
    for name, page in shown.items():
        assert page.count("<tr>") <= 21, name
        assert len(page) < 10_000, name
    assert "<th>score</th>" in shown["TextHits"]
    assert TEXTS[0] in shown["TextHits"]
    assert "82.0300" in shown["Scores"]
    assert "the first 20 rows" in shown["Hits"]


def test_texts_of_others_are_escaped_in_a_notebook():
    hit = gemel.Hit("1", 0.5, 0.5, "<script>alert(1)</script>", 0, {})
    page = gemel.Answer((hit,), "cosine", exact=True, seconds=0.1)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((2, 3), np.float32), "float32 (2, 3)"),
        ("x" * 40, repr("x" * 29 + "…")),
        (1 / 3, "0.3333"),
        ((1,), "(1,)"),
        (["a", None], "['a', None]"),
        (list(range(1000)), "list of 1,000"),
        ({"a": 1}, "{a: 1}"),
    ],
)
def test_a_value_in_a_few_words(value, words):
    assert short(value) == words


def test_a_subclass_of_a_model_may_have_private_attributes_of_its_own():
    class Own(FixedAttributes):
        def __init__(self):
            self._cache = {}

    assert Own()._cache == {}
    with pytest.raises(AttributeError, match="takes no attribute 'cache'"):
        Own().cache = {}
