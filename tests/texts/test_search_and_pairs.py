"""Pairs and search from texts, against the same questions asked of arrays."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.encoder.test_classification_head import head

import gemel
from gemel.checkpoint.write import write_checkpoint
from gemel.options import EncodeOptions
from gemel.texts import cascade as two_speeds
from gemel.texts.cascade import SomeVectors, fast_pairs, fast_search
from gemel.texts.pairs import PairQuestion, pairs_of_texts
from gemel.texts.search import SearchQuestion, search_texts
from gemel.vectors.quantize import search_by_bits
from tiny import TEXT, tiny_bert

ONE = EncodeOptions(threads=1)


def texts_of(count, seed=0):
    random = np.random.default_rng(seed)
    words = TEXT.split()
    return [" ".join(random.choice(words, size=random.integers(3, 8))) for _ in range(count)]


TEXTS = texts_of(120)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(scope="module")
def related(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("models") / "related"
    return gemel.load(write_checkpoint(model.checkpoint, folder, relation=head()))


class Blurred:
    """A student: the model's own vectors, less exact."""

    def __init__(self, model, blur):
        self.model, self.blur, self.dim = model, blur, model.dim

    def encode(self, texts):
        vectors = self.model.encode(texts, threads=1)
        noise = np.random.default_rng(len(texts)).normal(size=vectors.shape)
        return (vectors + self.blur * noise).astype(np.float32)


def test_pairs_are_those_of_the_vectors(model):
    found = pairs_of_texts(model, TEXTS, PairQuestion(k=7), options=ONE)
    exact = gemel.similar_pairs(model.encode(TEXTS, threads=1), k=7)
    np.testing.assert_array_equal(found.pairs.left, exact.left)
    rows = list(found.rows())
    assert [(row["left"], row["right"]) for row in rows] == list(zip(exact.left, exact.right, strict=True))
    assert list(rows[0]) == ["score", "left", "right", "left_text", "right_text"]
    assert rows[0]["left_text"] == TEXTS[rows[0]["left"]]
    assert found.summary() == "7 pairs, 7,140 compared, complete"


def test_ids_name_the_rows(model):
    ids = [f"id{place}" for place in range(len(TEXTS))]
    row = next(pairs_of_texts(model, TEXTS, PairQuestion(k=1), options=ONE).rows(ids))
    assert row["left_text"] == TEXTS[int(row["left"].removeprefix("id"))]
    assert row["right_text"] == TEXTS[int(row["right"].removeprefix("id"))]


def test_pairs_between_two_sets(model):
    other = texts_of(30, seed=5)
    found = pairs_of_texts(model, TEXTS, PairQuestion(k=3, calibrated=True), other=other, options=ONE)
    assert found.calibration.rows == (120, 30)
    for row in found.rows():
        assert (TEXTS[row["left"]], other[row["right"]]) == (row["left_text"], row["right_text"])


def test_an_expected_number_of_false_pairs_is_the_cut(model):
    found = pairs_of_texts(model, TEXTS, PairQuestion(expected_false=50), options=ONE)
    cut = found.calibration.threshold(50)
    assert len(found.pairs) == len(gemel.similar_pairs(model.encode(TEXTS, threads=1), min_score=cut))
    rows = list(found.rows())
    assert list(rows[0])[:3] == ["score", "percentile", "expected_false"]
    assert all(row["expected_false"] <= 50.001 for row in rows)


def test_pairs_that_were_streamed_come_best_first(model, tmp_path):
    question = PairQuestion(min_score=0.5)
    there = pairs_of_texts(model, TEXTS, question, options=ONE, out=tmp_path / "pairs")
    here = pairs_of_texts(model, TEXTS, question, options=ONE)
    assert len(here.pairs) > 10
    np.testing.assert_array_equal(there.pairs.score, here.pairs.score)
    np.testing.assert_array_equal(there.pairs.left, here.pairs.left)


def test_a_kept_head_adds_its_labels_to_pairs_and_answers(related):
    found = pairs_of_texts(related, TEXTS, PairQuestion(k=5), options=ONE)
    row = next(found.rows())
    names = [f"p_{label}" for label in related.labels]
    expected = related.relation([row["left_text"]], [row["right_text"]], threads=1)[0]
    np.testing.assert_allclose([row[name] for name in names], expected, rtol=1e-5)
    answer = next(search_texts(related, ["a man"], TEXTS, options=ONE).rows())
    expected = related.relation(["a man"], [answer["text"]], threads=1)[0]
    np.testing.assert_allclose([answer[name] for name in names], expected, rtol=1e-5)


def test_vectors_that_the_head_does_not_know_get_no_labels(related):
    found = pairs_of_texts(related, TEXTS, PairQuestion(k=1), options=EncodeOptions(dim=8, threads=1))
    assert found.relations is None


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (PairQuestion(), "need k"),
        (PairQuestion(k=3, dial=2), "both a dial and a student"),
    ],
)
def test_questions_that_mean_nothing_are_refused(model, question, words):
    with pytest.raises(gemel.InputError, match=words):
        pairs_of_texts(model, TEXTS, question)


def test_vectors_for_storing_are_not_compared(model):
    with pytest.raises(gemel.InputError, match="is for storing"):
        pairs_of_texts(model, TEXTS, PairQuestion(k=1), options=EncodeOptions(output="binary"))
    with pytest.raises(gemel.InputError, match="is for storing"):
        search_texts(model, ["a"], TEXTS, options=EncodeOptions(output="int8"))


def test_a_perfect_student_finds_every_pair(model):
    found = fast_pairs(model, Blurred(model, 0), TEXTS, k=10, dial=1)
    exact = gemel.similar_pairs(model.encode(TEXTS), k=10)
    np.testing.assert_array_equal(found.pairs.left, exact.left)
    np.testing.assert_allclose(found.pairs.score, exact.score, atol=1e-6)
    assert found.pairs.recall == 1.0
    assert not found.pairs.complete


def test_a_higher_dial_finds_more_and_encodes_more(model):
    texts = texts_of(1500, seed=3)
    low, high = (fast_pairs(model, Blurred(model, 0.08), texts, k=20, dial=dial) for dial in (1, 20))
    assert low.pairs.recall < high.pairs.recall
    assert len(low.left.vectors) < len(high.left.vectors) < len(texts)
    assert low.pairs.score.sum() < high.pairs.score.sum()


def test_two_speeds_between_two_sets_and_with_a_cut(model):
    other = texts_of(50, seed=5)
    student = Blurred(model, 0.01)
    question = PairQuestion(k=9, dial=3, expected_false=20)
    found = pairs_of_texts(model, TEXTS, question, other=other, options=ONE, student=student)
    exact = pairs_of_texts(model, TEXTS, PairQuestion(k=9, expected_false=20), other=other, options=ONE)
    assert [row["left_text"] for row in found.rows()] == [row["left_text"] for row in exact.rows()]
    assert found.calibration.total == 120 * 50
    assert "not complete, recall about" in found.summary()
    assert found.summary().endswith("texts encoded")


def test_some_vectors_are_found_by_position(model):
    some = SomeVectors.of(model, TEXTS, np.array([5, 3, 5]))
    np.testing.assert_array_equal(some[np.array([5, 3])], model.encode([TEXTS[5], TEXTS[3]]))
    more = some.plus(model, TEXTS, np.array([3, 0]))
    np.testing.assert_array_equal(more[np.array([0])], model.encode([TEXTS[0]]))
    assert more.positions.tolist() == [3, 5, 0]


def test_search_is_that_of_the_vectors_with_both_prompts(tmp_path):
    prompts = {"query": "how do i ", "document": "the "}
    model = gemel.load(tiny_bert(tmp_path / "model", prompts=prompts))
    found = search_texts(model, ["reset my password", "rain"], TEXTS, SearchQuestion(k=4), options=ONE)
    exact = gemel.search(model.encode_query(["reset my password", "rain"]), model.encode_document(TEXTS), k=4)
    np.testing.assert_array_equal(found.hits.index, exact.index)
    np.testing.assert_allclose(found.cosine, exact.score, atol=1e-6)
    rows = list(found.rows())
    assert [row["rank"] for row in rows] == [1, 2, 3, 4] * 2
    assert list(rows[0]) == ["query", "rank", "score", "id", "text"]
    assert found.summary() == "2 queries, 120 texts, scored by cosine, every text compared"


def test_hybrid_search_finds_the_words_too(model):
    corpus = [*TEXTS, "xylophone 42"]
    found = search_texts(model, ["xylophone 42"], corpus, SearchQuestion(k=3, hybrid=True), options=ONE)
    rows = list(found.rows())
    assert rows[0]["text"] == "xylophone 42"
    assert rows[0]["score"] == pytest.approx(2 / 61)
    assert rows[0]["cosine"] == pytest.approx(1, abs=1e-5)


class Longest:
    """A cross-encoder that likes long texts."""

    def scores(self, left, right, options=None):
        return np.array([len(text) for text in right], dtype=np.float32)


def test_a_cross_encoder_orders_the_candidates_anew(model):
    question = SearchQuestion(k=3, candidates=20)
    found = search_texts(model, ["a man"], TEXTS, question, options=ONE, rerank=Longest())
    near = gemel.search(model.encode(["a man"]), model.encode(TEXTS), k=20).index[0]
    assert [row["score"] for row in found.rows()] == sorted((len(TEXTS[i]) for i in near), reverse=True)[:3]
    assert found.scored_by == "cross"


@pytest.mark.parametrize("coarse", ["int8", "binary"])
def test_coarse_candidates_are_scored_exactly_and_say_their_recall(model, coarse):
    found = search_texts(model, ["a man", "rain"], TEXTS, SearchQuestion(k=5, coarse=coarse), options=ONE)
    exact = search_texts(model, ["a man", "rain"], TEXTS, SearchQuestion(k=5), options=ONE)
    same = np.isin(found.hits.index[0], exact.hits.index[0]).mean()
    assert same >= 0.6
    assert 0.6 <= found.hits.recall <= 1
    np.testing.assert_allclose(found.hits.score, found.cosine, atol=1e-6)


def test_all_rows_as_bit_candidates_are_an_exact_search():
    random = np.random.default_rng(0)
    queries, corpus = random.normal(size=(5, 16)), random.normal(size=(60, 16))
    found = search_by_bits(queries, corpus, 4, candidates=60)
    exact = gemel.search(queries, corpus, 4)
    np.testing.assert_array_equal(found.index, exact.index)
    assert found.recall == 1.0
    assert search_by_bits(queries, corpus, 99).index.shape == (5, 60)
    with pytest.raises(gemel.InputError, match="at least k=4"):
        search_by_bits(queries, corpus, 4, candidates=2)
    with pytest.raises(gemel.InputError, match="8 dimensions to a byte"):
        search_by_bits(queries[:, :9], corpus[:, :9], 4)


def test_search_at_two_speeds(model):
    texts = texts_of(1500, seed=3)
    exact = search_texts(model, TEXTS[:5], texts, SearchQuestion(k=5), options=ONE)
    question = SearchQuestion(k=5, dial=10)
    found = search_texts(model, TEXTS[:5], texts, question, options=ONE, student=Blurred(model, 0.01))
    np.testing.assert_array_equal(found.hits.index, exact.hits.index)
    assert found.hits.recall > 0.9
    assert found.encoded < len(set(texts))
    assert found.summary().endswith(f"{found.encoded:,} texts encoded")


def test_two_speeds_and_words_score_texts_that_the_student_missed(model):
    corpus = [*texts_of(900, seed=3), "xylophone 42"]
    question = SearchQuestion(k=3, dial=1, hybrid=True, candidates=3)
    found = search_texts(model, ["xylophone 42"], corpus, question, options=ONE, student=Blurred(model, 5))
    rows = {row["text"]: row for row in found.rows()}
    assert rows["xylophone 42"]["cosine"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"k": 0}, "k must be"),
        ({"k": 5, "candidates": 3}, "at least k=5"),
        ({"coarse": "int4"}, "coarse must be one of"),
        ({"coarse": "int8", "dial": 3}, "Choose one"),
    ],
)
def test_steps_that_do_not_fit_are_refused(settings, words):
    with pytest.raises(gemel.InputError, match=words):
        SearchQuestion(**settings)


def test_nothing_to_search_is_refused(model):
    with pytest.raises(gemel.InputError, match="corpus is empty"):
        search_texts(model, ["a"], [])
    with pytest.raises(gemel.InputError, match="queries is empty"):
        search_texts(model, [], ["a"])
    with pytest.raises(gemel.InputError, match="both a dial and a student"):
        search_texts(model, ["a"], ["b"], SearchQuestion(dial=3))


def test_a_dial_is_a_whole_number(model):
    with pytest.raises(gemel.InputError, match="dial must be a whole number"):
        fast_pairs(model, model, TEXTS, k=1, dial=0)
    with pytest.raises(gemel.InputError, match="need a student"):
        fast_search(_NoStudent(), ["a"], ["b"], k=1, dial=1)


class _NoStudent:
    student = None


def test_two_speeds_use_the_threads_they_were_given_for_the_recall_too(model, monkeypatch):
    asked = []
    for name in ("similar_pairs", "search"):
        real = getattr(two_speeds, name)

        def noted(*args, real=real, **settings):
            asked.append(settings.get("threads"))
            return real(*args, **settings)

        monkeypatch.setattr(two_speeds, name, noted)
    fast_pairs(model, model, TEXTS, k=3, dial=2, threads=1)
    sides = SimpleNamespace(queries=model, documents=model, student=model)
    fast_search(sides, TEXTS[:2], TEXTS, k=2, dial=2, threads=1)
    assert asked == [1] * 8
