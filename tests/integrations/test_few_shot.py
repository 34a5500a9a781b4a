"""The few-shot classifier: pairs out of labels, tuning, the head, and a folder to keep it in."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, ModelError
from tiny import tiny_bert

sklearn = pytest.importorskip("sklearn", reason="needs scikit-learn")

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import cross_val_score  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402
from sklearn.utils.validation import validate_data  # noqa: E402

import gemel.sklearn  # noqa: E402
from gemel.sklearn import FewShotClassifier, pairs_from_labels  # noqa: E402

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

MUSIC = ["a man is playing guitar", "a woman is playing the flute", "the man is playing", "guitar and flute"]
MONEY = ["the stock market fell", "the market rose today", "stock rose sharply", "refund not received"]
HELP = ["how do i reset my password", "reset password", "my password", "how do i reset"]
TEXTS = [*MUSIC, *MONEY, *HELP]
LABELS = ["music"] * 4 + ["money"] * 4 + ["help"] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("models") / "tiny", prompts={"query": "how "}))


@pytest.fixture(scope="module")
def alone(folder):
    """The head only, without tuning."""
    return FewShotClassifier(folder, tune=False, threads=1).fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def tuned(folder):
    pytest.importorskip("accelerate", reason="tuning needs the extra train")
    return FewShotClassifier(folder, tune=True, learning_rate=3e-3, epochs=10, threads=1).fit(TEXTS, LABELS)


# pairs


def test_every_two_texts_of_a_class_are_a_pair_and_as_many_are_drawn_across():
    labels = np.repeat([0, 1, 2], 4)
    pairs = pairs_from_labels(TEXTS, labels, partners=8, seed=0)
    where = dict(zip(TEXTS, labels, strict=True))
    same = [where[left] == where[right] for left, right in zip(pairs["left"], pairs["right"], strict=True)]
    assert [int(each) for each in same] == pairs["score"]
    assert sum(same) == 3 * 6
    assert len(same) == 2 * 3 * 6
    assert len({frozenset(pair) for pair in zip(pairs["left"], pairs["right"], strict=True)}) == len(same)


def test_large_classes_give_a_sample_that_follows_from_the_seed():
    texts = [f"text {number}" for number in range(40)]
    labels = np.repeat([0, 1], 20)
    pairs = pairs_from_labels(texts, labels, partners=4, seed=1)
    assert sum(pairs["score"]) == 2 * 20 * 4 / 2
    assert pairs == pairs_from_labels(texts, labels, partners=4, seed=1)
    assert pairs != pairs_from_labels(texts, labels, partners=4, seed=2)


def test_equal_texts_are_never_a_pair():
    pairs = pairs_from_labels(["a", "a", "b", "b", "c"], np.array([0, 0, 0, 1, 1]), partners=8, seed=0)
    assert all(left != right for left, right in zip(pairs["left"], pairs["right"], strict=True))
    with pytest.raises(InputError, match="tune=False"):
        pairs_from_labels(["a", "b"], np.array([0, 1]), partners=8, seed=0)


# the head


def test_the_head_alone_learns_on_the_model_as_it_is(alone, folder):
    assert alone.classes_.tolist() == ["help", "money", "music"]
    assert alone.predict(TEXTS).tolist() == LABELS
    assert alone.score(TEXTS, LABELS) == 1
    assert alone.tuned_ is False
    assert alone.encoder_ == folder


def test_probabilities_sum_to_1_and_name_the_same_class(alone):
    result = alone.predict_proba(TEXTS)
    assert result.shape == (12, 3)
    assert np.allclose(result.sum(axis=1), 1)
    assert np.array_equal(alone.classes_[result.argmax(axis=1)], alone.predict(TEXTS))
    powers = np.exp(alone.decision_function(TEXTS))
    assert np.allclose(powers / powers.sum(axis=1, keepdims=True), result)


def test_the_head_is_scikit_learns_logistic_regression(alone, folder):
    from sklearn.linear_model import LogisticRegression

    vectors = gemel.load(folder).encode(TEXTS).astype(np.float64)
    theirs = LogisticRegression(C=10.0, max_iter=2000).fit(vectors, LABELS)
    assert np.allclose(alone.predict_proba(TEXTS), theirs.predict_proba(vectors), atol=1e-6)
    two = FewShotClassifier(folder, tune=False).fit(TEXTS[:8], LABELS[:8])
    theirs.fit(vectors[:8], LABELS[:8])
    assert np.allclose(two.predict_proba(TEXTS), theirs.predict_proba(vectors), atol=1e-6)
    assert np.allclose(two.decision_function(TEXTS), theirs.decision_function(vectors), atol=1e-5)


def test_a_text_has_the_same_probabilities_in_any_batch(alone):
    assert np.array_equal(alone.predict_proba(TEXTS[3:4])[0], alone.predict_proba(TEXTS)[3])


def test_labels_may_be_numbers(folder):
    result = FewShotClassifier(folder, tune=False).fit(TEXTS, [7] * 4 + [3] * 8)
    assert result.classes_.tolist() == [3, 7]
    assert result.predict(MUSIC[:1]).tolist() == [7]


# tuning


def test_tuning_brings_texts_of_a_class_closer_together(tuned, folder):
    def inside(model):
        vectors = gemel.load(model).encode(TEXTS)
        table = vectors @ vectors.T
        same = np.array(LABELS)[:, None] == np.array(LABELS)
        return table[same].mean() - table[~same].mean()

    assert tuned.tuned_
    assert inside(tuned.encoder_) > inside(folder) + 0.1
    assert tuned.score(TEXTS, LABELS) == 1


def test_the_same_seed_tunes_to_the_same_probabilities(tuned):
    again = clone(tuned).fit(TEXTS, LABELS)
    assert np.array_equal(again.predict_proba(TEXTS), tuned.predict_proba(TEXTS))


def test_vectors_of_few_directions_do_not_stop_the_tuning(folder, monkeypatch):
    pytest.importorskip("accelerate", reason="tuning needs the extra train")
    monkeypatch.setattr("gemel.training.watch.NARROW", 3.0)
    monkeypatch.setattr("gemel.training.watch.RANK", 2.0)
    monkeypatch.setattr("gemel.training.watch._positives_nearer", lambda first, now: False)
    assert FewShotClassifier(folder, tune=True, epochs=0.5, threads=1).fit(TEXTS, LABELS).tuned_


@pytest.mark.parametrize(("examples", "epochs"), [(4, 8), (8, 4), (16, 2), (64, 1)])
def test_fewer_examples_are_seen_more_often(examples, epochs):
    assert gemel.sklearn._epochs(examples) == epochs


def test_a_temporary_model_goes_with_its_classifier_and_is_not_pickled(tuned, folder):
    short = FewShotClassifier(folder, tune=True, epochs=0.1, threads=1).fit(TEXTS, LABELS)
    path = Path(short.encoder_)
    assert path.is_dir()
    with pytest.raises(InputError, match=r"save\(folder\)"):
        pickle.dumps(short)
    del short
    assert not path.exists()


def test_a_second_fit_forgets_the_first_model(folder):
    pytest.importorskip("accelerate", reason="tuning needs the extra train")
    twice = FewShotClassifier(folder, tune=True, epochs=0.1, threads=1).fit(TEXTS, LABELS)
    first = Path(twice.encoder_)
    twice.fit(TEXTS, LABELS)
    assert not first.exists()
    twice.set_params(tune=False).fit(TEXTS, LABELS)
    assert pickle.loads(pickle.dumps(twice)).predict(MUSIC[:1]).tolist() == ["music"]


def test_a_tuned_model_can_be_saved_to_a_given_folder(folder, tmp_path):
    pytest.importorskip("accelerate", reason="tuning needs the extra train")
    kept = FewShotClassifier(folder, tune=True, epochs=0.1, threads=1, folder=tmp_path / "kept").fit(
        TEXTS, LABELS
    )
    assert gemel.load(tmp_path / "kept").dim == 32
    again = pickle.loads(pickle.dumps(kept))
    assert np.array_equal(again.predict_proba(TEXTS), kept.predict_proba(TEXTS))


def test_without_the_train_extra_the_head_alone_is_fitted(folder, monkeypatch):
    monkeypatch.setattr(gemel.sklearn, "find_spec", lambda name: None)
    assert FewShotClassifier(folder, tune=None).fit(TEXTS, LABELS).tuned_ is False


def test_the_prompt_is_used_in_training(folder):
    named = FewShotClassifier(folder, tune=False, prompt_name="query").fit(TEXTS, LABELS)
    written = FewShotClassifier(folder, tune=False).fit(["how " + text for text in TEXTS], LABELS)
    assert np.allclose(named.head_.weight, written.head_.weight)


# a folder to keep it in


def test_a_saved_classifier_comes_back_with_the_same_answers(tuned, tmp_path):
    tuned.save(tmp_path / "kept")
    again = FewShotClassifier.load(tmp_path / "kept")
    assert np.array_equal(again.predict_proba(TEXTS), tuned.predict_proba(TEXTS))
    assert again.get_params() == tuned.get_params()
    assert again.tuned_
    endings = {path.suffix for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    assert endings <= {".json", ".safetensors", ".txt"}
    assert pickle.loads(pickle.dumps(again)).predict(MUSIC[:1]).tolist() == ["music"]


def test_a_model_given_by_name_is_not_copied_but_verified(alone, tmp_path, monkeypatch):
    path = tiny_bert(tmp_path / "m")
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "models").mkdir(parents=True)
    path.rename(tmp_path / "cache" / "models" / "small")
    FewShotClassifier("small", tune=False).fit(TEXTS, LABELS).save(tmp_path / "kept")
    assert not (tmp_path / "kept" / "model").exists()
    assert FewShotClassifier.load(tmp_path / "kept").predict(MUSIC[:1]).tolist() == ["music"]
    about = json.loads((tmp_path / "kept" / "classifier.json").read_text())
    (tmp_path / "kept" / "classifier.json").write_text(json.dumps({**about, "fingerprint": "0" * 16}))
    with pytest.raises(ModelError, match="the vectors of the model small differ"):
        FewShotClassifier.load(tmp_path / "kept")


def test_only_a_classifier_is_overwritten(alone, tmp_path):
    alone.save(tmp_path / "kept")
    with pytest.raises(InputError, match="overwrite=True"):
        alone.save(tmp_path / "kept")
    alone.save(tmp_path / "kept", overwrite=True)
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "monday").touch()
    with pytest.raises(InputError, match="no classifier"):
        alone.save(tmp_path / "diary", overwrite=True)


def test_labels_keep_their_type(folder, tmp_path):
    for number, labels in enumerate(
        ([1] * 4 + [2] * 8, np.array(LABELS, dtype=object), [True] * 4 + [False] * 8)
    ):
        fitted = FewShotClassifier(folder, tune=False).fit(TEXTS, labels)
        again = FewShotClassifier.load(fitted.save(tmp_path / str(number)))
        assert again.classes_.dtype == fitted.classes_.dtype
        assert again.classes_.tolist() == fitted.classes_.tolist()
    days = np.array(["2020-01-01"] * 4 + ["2021-01-01"] * 8, dtype="datetime64[D]")
    with pytest.raises(InputError, match="JSON"):
        FewShotClassifier(folder, tune=False).fit(TEXTS, days).save(tmp_path / "days")


def test_numbers_of_numpy_are_saved_as_numbers(folder, tmp_path):
    numbers = {"C": np.float32(3), "seed": np.int64(3), "epochs": np.int32(1), "tune": np.bool_(False)}
    fitted = FewShotClassifier(folder, threads=1, **numbers).fit(TEXTS, LABELS)
    again = FewShotClassifier.load(fitted.save(tmp_path / "kept"))
    assert {name: again.get_params()[name] for name in numbers} == {
        "C": 3.0,
        "seed": 3,
        "epochs": 1,
        "tune": False,
    }
    assert np.array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))


def test_parameters_of_another_version_are_a_model_error(alone, tmp_path):
    about = json.loads((alone.save(tmp_path / "kept") / "classifier.json").read_text())
    for parameters, message in (
        (
            {**about["parameters"], "color": 1},
            r"'color', which FewShotClassifier does not take.* fit it again",
        ),
        ([1], "cannot be read"),
    ):
        (tmp_path / "kept" / "classifier.json").write_text(json.dumps({**about, "parameters": parameters}))
        with pytest.raises(ModelError, match=message):
            FewShotClassifier.load(tmp_path / "kept")


def test_a_damaged_folder_is_a_model_error(alone, tmp_path):
    with pytest.raises(ModelError, match="no classifier"):
        FewShotClassifier.load(tmp_path)
    alone.save(tmp_path / "kept")
    (tmp_path / "kept" / "head.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="cannot be read"):
        FewShotClassifier.load(tmp_path / "kept")


# in scikit-learn


def test_it_is_scored_by_cross_validation(folder):
    scores = cross_val_score(FewShotClassifier(folder, tune=False), TEXTS, LABELS, cv=4)
    assert scores.shape == (4,)


def test_data_that_cannot_be_learned_is_refused(folder):
    with pytest.raises(InputError, match="one class, 'a'"):
        FewShotClassifier(folder, tune=False).fit(TEXTS, ["a"] * 12)
    with pytest.raises(InputError, match="12 texts but 2"):
        FewShotClassifier(folder, tune=False).fit(TEXTS, ["a", "b"])
    with pytest.raises(InputError, match="C must be"):
        FewShotClassifier(folder, tune=False, C=0).fit(TEXTS, LABELS)
    with pytest.raises(NotFittedError):
        FewShotClassifier(folder).predict(TEXTS)


class OfNumbers(FewShotClassifier):
    """scikit-learn checks classifiers with tables of numbers: this one writes each row out and classifies that."""

    def fit(self, X, y):  # noqa: N803 - their name
        return super().fit(self._words(*validate_data(self, X, y)[:1]), y)

    def predict(self, X):  # noqa: N803 - their name
        return super().predict(self._read(X))

    def predict_proba(self, X):  # noqa: N803 - their name
        return super().predict_proba(self._read(X))

    def decision_function(self, X):  # noqa: N803 - their name
        return super().decision_function(self._read(X))

    def _read(self, given):
        if not hasattr(self, "head_"):
            raise NotFittedError
        return self._words(validate_data(self, given, reset=False))

    def _words(self, rows):
        return [" ".join(f"{number:.3g}" for number in row) for row in rows]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
        return tags


UNFIT = {
    "check_classifiers_train": "it wants clusters of points told apart; a random model reads their digits"
}


def test_the_estimator_checks_pass(folder):
    checked = OfNumbers(folder, tune=False, threads=1, on_long="truncate")
    results = check_estimator(checked, on_skip=None, on_fail=None, expected_failed_checks=UNFIT)
    failed = {each["check_name"]: str(each["exception"]) for each in results if each["status"] == "failed"}
    assert not failed
    assert sum(each["status"] == "passed" for each in results) > 40
