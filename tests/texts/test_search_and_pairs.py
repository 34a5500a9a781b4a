"""Pairs and search from texts, against the same calls on arrays."""

import numpy as np
import pytest
from tests.encoder.test_classification_head import head

import gemel
from gemel.checkpoint.write import write_checkpoint
from gemel.options import EncodeOptions
from gemel.texts import cascade
from gemel.texts.cascade import Cascade, SomeVectors
from gemel.texts.search import find_pairs, search_texts
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
    """A student: the model's own vectors with noise."""

    def __init__(self, model, blur):
        self.model, self.blur, self.dim = model, blur, model.dim

    def encode(self, texts):
        vectors = self.model.encode(texts, threads=1)
        noise = np.random.default_rng(len(texts)).normal(size=vectors.shape)
        return (vectors + self.blur * noise).astype(np.float32)


def test_pairs_are_those_of_the_vectors(model):
    result = find_pairs(model, TEXTS, k=7, options=ONE)
    exact = gemel.similar_pairs(model.encode(TEXTS, threads=1), k=7)
    np.testing.assert_array_equal(result.pairs.left, exact.left)
    rows = list(result.rows())
    assert [(row["left"], row["right"]) for row in rows] == list(zip(exact.left, exact.right, strict=True))
    assert list(rows[0]) == ["score", "left", "right", "left_text", "right_text"]
    assert rows[0]["left_text"] == TEXTS[rows[0]["left"]]
    assert result.summary() == "7 pairs, 7,140 compared, complete"


def test_ids_name_the_rows(model):
    ids = [f"id{position}" for position in range(len(TEXTS))]
    row = next(find_pairs(model, TEXTS, k=1, options=ONE).rows(ids))
    assert row["left_text"] == TEXTS[int(row["left"].removeprefix("id"))]
    assert row["right_text"] == TEXTS[int(row["right"].removeprefix("id"))]


def test_pairs_between_two_sets(model):
    other = texts_of(30, seed=5)
    result = find_pairs(model, TEXTS, k=3, calibrated=True, other=other, options=ONE)
    assert result.calibration.rows == (120, 30)
    for row in result.rows():
        assert (TEXTS[row["left"]], other[row["right"]]) == (row["left_text"], row["right_text"])


def test_an_expected_number_of_false_pairs_is_the_cut(model):
    result = find_pairs(model, TEXTS, expected_false=50, options=ONE)
    cut = result.calibration.threshold(50)
    assert len(result.pairs) == len(gemel.similar_pairs(model.encode(TEXTS, threads=1), min_score=cut))
    rows = list(result.rows())
    assert list(rows[0])[:3] == ["score", "percentile", "expected_false"]
    assert all(row["expected_false"] <= 50.001 for row in rows)


def labels_of(model, count=400):
    """Every fourth of the best pairs; those above the middle are called correct."""
    rows = list(find_pairs(model, TEXTS, k=count, options=ONE).rows())
    return [(row["left_text"], row["right_text"], int(at < count // 2)) for at, row in enumerate(rows)][::4]


def test_labels_and_a_target_precision_choose_the_threshold(model):
    labels = labels_of(model)
    result = find_pairs(model, TEXTS, labels=labels, target_precision=0.8, options=ONE)
    exact = gemel.similar_pairs(model.encode(TEXTS, threads=1), min_score=result.precision.threshold)
    np.testing.assert_array_equal(result.pairs.left, exact.left)
    assert len(result) == result.precision.pairs == pytest.approx(250, abs=15)
    rows = list(result.rows())
    assert list(rows[0])[:2] == ["score", "probability"]
    assert rows[0]["probability"] == 1 > rows[-1]["probability"]
    few = find_pairs(model, TEXTS, k=3, labels=labels, target_precision=0.8, options=ONE)
    assert len(few) == 3


def test_a_threshold_far_below_the_best_pairs_is_found_too(model):
    """More pairs than are looked at first."""
    labels = [*labels_of(model, 2000), (TEXTS[0], TEXTS[-1], 0)]
    result = find_pairs(model, TEXTS, labels=labels, target_precision=0.9, options=ONE)
    assert len(result) == pytest.approx(1111, abs=40)
    assert len(result) > 4 * len(TEXTS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"labels": [("a", "b", 1)]}, "labels and target_precision belong together"),
        ({"target_precision": 0.9, "k": 3}, "labels and target_precision belong together"),
        ({"labels": [], "target_precision": 0.9}, "there are no labels"),
        ({"labels": [("a", "b", 1)], "target_precision": 0.9}, "at least 10 labels"),
        ({"labels": [("a", 3, 1)], "target_precision": 0.9}, "texts of labels"),
    ],
)
def test_bad_labels_are_refused(model, arguments, words):
    with pytest.raises(gemel.InputError, match=words):
        find_pairs(model, TEXTS, options=ONE, **arguments)


def test_pairs_that_were_streamed_come_best_first(model, tmp_path):
    there = find_pairs(model, TEXTS, min_score=0.5, options=ONE, out=tmp_path / "pairs")
    here = find_pairs(model, TEXTS, min_score=0.5, options=ONE)
    assert len(here.pairs) > 10
    np.testing.assert_array_equal(there.pairs.score, here.pairs.score)
    np.testing.assert_array_equal(there.pairs.left, here.pairs.left)


def test_a_classification_head_adds_its_labels_to_pairs_and_hits(related):
    result = find_pairs(related, TEXTS, k=5, options=ONE)
    row = next(result.rows())
    names = [f"p_{label}" for label in related.labels]
    expected = related.relation([row["left_text"]], [row["right_text"]], threads=1)[0]
    np.testing.assert_allclose([row[name] for name in names], expected, rtol=1e-5)
    answer = next(search_texts(related, ["a man"], TEXTS, options=ONE).rows())
    expected = related.relation(["a man"], [answer["text"]], threads=1)[0]
    np.testing.assert_allclose([answer[name] for name in names], expected, rtol=1e-5)


def test_vectors_that_do_not_fit_the_head_get_no_labels(related):
    result = find_pairs(related, TEXTS, k=1, options=EncodeOptions(dim=8, threads=1))
    assert result.relations is None


def test_pairs_without_a_limit_are_refused(model):
    with pytest.raises(gemel.InputError, match="need k"):
        find_pairs(model, TEXTS)
    with pytest.raises(gemel.InputError, match="a student needs k"):
        find_pairs(model, TEXTS, min_score=0.5, student=model)


def test_vectors_for_storing_are_not_compared(model):
    with pytest.raises(gemel.InputError, match="is for storing"):
        find_pairs(model, TEXTS, k=1, options=EncodeOptions(output="binary"))
    with pytest.raises(gemel.InputError, match="is for storing"):
        search_texts(model, ["a"], TEXTS, options=EncodeOptions(output="int8"))


def test_a_perfect_student_finds_every_pair(model):
    result = Cascade(model, Blurred(model, 0), 1).pairs(TEXTS, 10)
    exact = gemel.similar_pairs(model.encode(TEXTS), k=10)
    np.testing.assert_array_equal(result.pairs.left, exact.left)
    np.testing.assert_allclose(result.pairs.score, exact.score, atol=1e-6)
    assert result.pairs.recall == 1.0
    assert not result.pairs.complete


def test_more_candidates_find_more_and_encode_more(model):
    texts = texts_of(1500, seed=3)
    low, high = (Cascade(model, Blurred(model, 0.08), count).pairs(texts, 20) for count in (1, 20))
    assert low.pairs.recall < high.pairs.recall
    assert len(low.left.vectors) < len(high.left.vectors) < len(texts)
    assert low.pairs.score.sum() < high.pairs.score.sum()


def test_a_cascade_between_two_sets_and_with_a_threshold(model):
    other = texts_of(50, seed=5)
    student = Blurred(model, 0.01)
    limits = {"k": 9, "expected_false": 20, "other": other, "options": ONE}
    result = find_pairs(model, TEXTS, student=student, student_candidates=3, **limits)
    exact = find_pairs(model, TEXTS, **limits)
    assert [row["left_text"] for row in result.rows()] == [row["left_text"] for row in exact.rows()]
    assert result.calibration.total == 120 * 50
    assert "not complete, recall about" in result.summary()
    assert result.summary().endswith("texts encoded")


def test_some_vectors_are_found_by_position(model):
    some = SomeVectors.of(model, TEXTS, np.array([5, 3, 5]))
    np.testing.assert_array_equal(some[np.array([5, 3])], model.encode([TEXTS[5], TEXTS[3]]))
    more = some.plus(model, TEXTS, np.array([3, 0]))
    np.testing.assert_array_equal(more[np.array([0])], model.encode([TEXTS[0]]))
    assert more.positions.tolist() == [3, 5, 0]


def test_search_is_that_of_the_vectors_with_both_prompts(tmp_path):
    prompts = {"query": "how do i ", "document": "the "}
    model = gemel.load(tiny_bert(tmp_path / "model", prompts=prompts))
    result = search_texts(model, ["reset my password", "rain"], TEXTS, k=4, options=ONE)
    exact = gemel.search(model.encode_query(["reset my password", "rain"]), model.encode_document(TEXTS), k=4)
    np.testing.assert_array_equal(result.hits.index, exact.index)
    np.testing.assert_allclose(result.cosine, exact.score, atol=1e-6)
    rows = list(result.rows())
    assert [row["rank"] for row in rows] == [1, 2, 3, 4] * 2
    assert list(rows[0]) == ["query", "rank", "score", "id", "text"]
    assert result.summary() == "2 queries, 120 texts, scored by cosine, every text compared"


def test_hybrid_search_finds_the_words_too(model):
    corpus = [*TEXTS, "xylophone 42"]
    result = search_texts(model, ["xylophone 42"], corpus, k=3, hybrid=True, options=ONE)
    rows = list(result.rows())
    assert rows[0]["text"] == "xylophone 42"
    assert rows[0]["score"] == pytest.approx(2 / 61)
    assert rows[0]["cosine"] == pytest.approx(1, abs=1e-5)


class Longest:
    """A cross-encoder that scores long texts higher."""

    def scores(self, left, right, options=None):
        return np.array([len(text) for text in right], dtype=np.float32)


def test_a_cross_encoder_sorts_the_candidates(model):
    result = search_texts(model, ["a man"], TEXTS, 3, candidates=20, options=ONE, rerank=Longest())
    near = gemel.search(model.encode(["a man"]), model.encode(TEXTS), k=20).index[0]
    assert [row["score"] for row in result.rows()] == sorted((len(TEXTS[i]) for i in near), reverse=True)[:3]
    assert result.scored_by == "cross"


def test_search_with_a_student(model):
    texts = texts_of(1500, seed=3)
    exact = search_texts(model, TEXTS[:5], texts, k=5, options=ONE)
    result = search_texts(model, TEXTS[:5], texts, k=5, options=ONE, student=Blurred(model, 0.01))
    np.testing.assert_array_equal(result.hits.index, exact.hits.index)
    assert result.hits.recall > 0.9
    assert result.encoded < len(set(texts))
    assert result.summary().endswith(f"{result.encoded:,} texts encoded")


def test_words_find_texts_that_the_student_missed(model):
    corpus = [*texts_of(900, seed=3), "xylophone 42"]
    steps = {"hybrid": True, "candidates": 3, "student": Blurred(model, 5), "student_candidates": 1}
    result = search_texts(model, ["xylophone 42"], corpus, 3, options=ONE, **steps)
    rows = {row["text"]: row for row in result.rows()}
    assert rows["xylophone 42"]["cosine"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"k": 0}, "k must be"),
        ({"k": 5, "candidates": 3}, "at least k=5"),
        ({"ids": ["a"]}, "there are 120 texts but 1 ids"),
    ],
)
def test_options_that_do_not_fit_are_refused(model, settings, words):
    with pytest.raises(gemel.InputError, match=words):
        search_texts(model, ["a"], TEXTS, **settings)


def test_nothing_to_search_is_refused(model):
    with pytest.raises(gemel.InputError, match="texts is empty"):
        search_texts(model, ["a"], [])
    with pytest.raises(gemel.InputError, match="queries is empty"):
        search_texts(model, [], ["a"])


def test_results_are_answers_as_an_index_gives_them(model):
    ids = [f"id{position}" for position in range(len(TEXTS))]
    result = search_texts(model, ["a man", "rain"], TEXTS, 4, ids=ids, options=ONE)
    index = gemel.open_index(":memory:", model)
    index.add(ids=ids, texts=TEXTS)
    for answer, query in zip(result, result.queries, strict=True):
        expected = index.search(query, k=4)
        assert answer.scored_by == expected.scored_by and answer.exact
        for hit, other in zip(answer, expected, strict=True):
            assert (hit.id, hit.text, hit.part, hit.fields) == (
                other.id,
                other.text,
                other.part,
                other.fields,
            )
            assert hit.score == pytest.approx(other.score, abs=1e-6)
    assert [row["id"] for row in result.rows()] == [hit.id for answer in result for hit in answer]
    assert len(result) == 2


def test_calibrated_results_have_a_percentile(model):
    result = search_texts(model, ["a man"], TEXTS, 3, calibrated=True, threads=1)
    row = next(result.rows())
    assert row["percentile"] == result.calibration.percentile(result[0][0].cosine)


def test_candidates_are_a_whole_number(model):
    with pytest.raises(gemel.InputError, match="candidates must be a whole number"):
        Cascade(model, model, 0)


def test_a_cascade_uses_its_threads_for_the_recall_too(model, monkeypatch):
    used = []
    for name in ("similar_pairs", "search"):
        real = getattr(cascade, name)

        def noted(*args, real=real, **settings):
            used.append(settings.get("threads"))
            return real(*args, **settings)

        monkeypatch.setattr(cascade, name, noted)
    both = Cascade(model, model, 2, threads=1)
    both.pairs(TEXTS, 3)
    both.search(TEXTS[:2], TEXTS, 2)
    assert used == [1] * 8
