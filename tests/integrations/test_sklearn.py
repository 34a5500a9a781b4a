"""gemel's transformer inside scikit-learn: pipelines, searches, pickles, and scikit-learn's own checks."""

import pickle
import sys
from importlib import import_module

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, MissingExtra
from tiny import tiny_bert

sklearn = pytest.importorskip("sklearn", reason="needs scikit-learn")

from sklearn.base import clone  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

from gemel.sklearn import SentenceVectors, shared_model  # noqa: E402

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

TEXTS = [
    "a man is playing guitar",
    "a woman is playing the flute",
    "the stock market fell",
    "the market rose today",
]
LABELS = ["music", "music", "money", "money"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("models") / "tiny", prompts={"query": "how do i "}))


@pytest.fixture(scope="module")
def vectors(folder):
    return gemel.load(folder).encode(TEXTS)


def test_texts_become_vectors_with_or_without_fit(folder, vectors):
    steps = SentenceVectors(folder)
    check_is_fitted(steps)
    assert np.array_equal(steps.transform(TEXTS), vectors)
    assert np.array_equal(steps.fit(TEXTS).transform(TEXTS), vectors)
    assert np.array_equal(steps.fit_transform(np.array(TEXTS, dtype=object)), vectors)


def test_every_parameter_is_an_option_of_encode(folder):
    options = {
        "dim": 8,
        "prompt": "the ",
        "normalize": False,
        "on_long": "chunk",
        "precision": "int8",
        "threads": 1,
    }
    result = SentenceVectors(folder, **options).fit_transform(TEXTS)
    assert np.array_equal(result, gemel.load(folder).encode(TEXTS, **options))
    named = SentenceVectors(folder, prompt_name="query").fit_transform(TEXTS)
    assert np.array_equal(named, gemel.load(folder).encode(TEXTS, prompt_name="query"))


def test_parameters_are_read_set_and_cloned(folder):
    steps = SentenceVectors(folder, dim=8)
    assert steps.get_params() == {
        "model": folder, "dim": 8, "precision": None, "prompt": None, "prompt_name": None, "normalize": None,
        "on_long": "warn", "threads": None,
    }  # fmt: skip
    assert clone(steps.set_params(dim=4)).dim == 4
    assert "dim=4" in repr(steps)


def test_columns_have_names(folder):
    names = SentenceVectors(folder, dim=3).get_feature_names_out()
    assert names.tolist() == ["sentencevectors0", "sentencevectors1", "sentencevectors2"]
    assert len(SentenceVectors(folder).get_feature_names_out()) == 32


def test_a_pickle_contains_the_name_and_not_the_weights(folder, vectors):
    steps = SentenceVectors(folder).fit(TEXTS)
    stored = pickle.dumps(steps)
    assert len(stored) < 1000
    assert np.array_equal(pickle.loads(stored).transform(TEXTS), vectors)


def test_estimators_share_a_model_until_its_folder_changes(tmp_path):
    model_folder = tiny_bert(tmp_path / "m")
    first = shared_model(str(model_folder))
    assert shared_model(model_folder) is first
    tiny_bert(tmp_path / "m", seed=1)
    assert shared_model(model_folder) is not first


# with other estimators


def test_a_pipeline_is_fitted_and_a_grid_search_varies_its_settings(folder):
    pipeline = make_pipeline(SentenceVectors(folder, threads=1), LogisticRegression())
    assert pipeline.fit(TEXTS, LABELS).predict(TEXTS).tolist() == LABELS
    grid = {"sentencevectors__dim": [4, None], "sentencevectors__normalize": [True, False]}
    result = GridSearchCV(pipeline, grid, cv=2).fit(TEXTS * 2, LABELS * 2)
    assert set(result.best_params_) == set(grid)
    assert len(result.cv_results_["params"]) == 4


@pytest.mark.parametrize("column", ["body", ["body"]])
def test_a_column_of_a_table_is_encoded_beside_others(folder, vectors, column):
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    table = pandas.DataFrame({"body": TEXTS, "size": [1.0, 2.0, 3.0, 4.0]}, index=list("abcd"))
    both = ColumnTransformer([("text", SentenceVectors(folder), column), ("rest", "passthrough", ["size"])])
    result = both.set_output(transform="pandas").fit_transform(table)
    assert result.columns[0] == "text__sentencevectors0"
    assert result.columns[-1] == "rest__size"
    assert result.index.tolist() == list("abcd")
    assert np.array_equal(result.iloc[:, :32].to_numpy(np.float32), vectors)


# errors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("one text", "a list of texts"),
        ([1, 2], r"texts\[0\]"),
        (["a", None], r"texts\[1\]"),
        (np.array([["a", "b"]]), "one column"),
    ],
)
def test_inputs_other_than_a_column_of_texts_are_refused(folder, given, message):
    with pytest.raises(InputError, match=message):
        SentenceVectors(folder).fit(given)
    with pytest.raises(InputError, match=message):
        SentenceVectors(folder).transform(given)


def test_wrong_settings_are_refused_in_fit(folder):
    for wrong, message in (
        ({"dim": 99}, "at most 32"),
        ({"prompt_name": "x"}, "unknown prompt"),
        ({"on_long": 1}, "on_long"),
    ):
        steps = SentenceVectors(folder, **wrong)
        with pytest.raises(InputError, match=message):
            steps.fit(TEXTS)
    with pytest.raises(InputError, match="a name or a folder"):
        SentenceVectors(gemel.load(folder)).fit(TEXTS)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn" or name == "gemel.sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtra, match=r"gemel\[evaluate\]"):
        import_module("gemel.sklearn")


# scikit-learn's own checks


def in_words(rows):
    """Rows of numbers as texts that differ where the numbers do."""
    return [" ".join(f"{number:.3g}" for number in row) for row in rows]


class OfNumbers(SentenceVectors):
    """scikit-learn checks estimators with tables of numbers: this one writes each row out and encodes that."""

    def fit(self, X, y=None):  # noqa: N803 - their name
        return super().fit(in_words(validate_data(self, X)))

    def transform(self, X):  # noqa: N803 - their name
        return super().transform(in_words(validate_data(self, X, reset=False)))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
        return tags


def test_the_estimator_checks_pass(folder):
    results = check_estimator(OfNumbers(folder, threads=1, on_long="truncate"), on_skip=None, on_fail=None)
    failed = {each["check_name"]: str(each["exception"]) for each in results if each["status"] == "failed"}
    assert not failed
    assert sum(each["status"] == "passed" for each in results) > 30


def test_the_checks_are_not_run_on_texts_by_scikit_learn_itself(folder):
    """It has no checks for texts and reports that, so the class above exists."""
    with pytest.warns(sklearn.exceptions.SkipTestWarning, match="Can't test"):
        check_estimator(SentenceVectors(folder), on_skip=None)
