"""Estimators for scikit-learn (extra `evaluate`): `SentenceVectors`, texts to vectors, and `FewShotClassifier`.

The classifier is a logistic regression on vectors, optionally after tuning the encoder on pairs of the few texts as
SetFit does (arXiv 2209.11055): eight texts of a class make 28 pairs with label 1. A saved classifier is a folder with
classifier.json, head.safetensors, and model/ unless the model has a name.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gemel.checkpoint.files import read_object
from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError, MissingExtra, ModelError
from gemel.evaluation.probe import one_thread
from gemel.files.atomic import atomic_folder, write_json
from gemel.model import Model, load
from gemel.options import EncodeOptions, OnLong, Precision
from gemel.types import AnyVectors

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.linear_model import LogisticRegression
    from sklearn.utils.extmath import softmax
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ModuleNotFoundError as error:
    raise MissingExtra("gemel.sklearn", "scikit-learn", "evaluate") from error

__all__ = ["FewShotClassifier", "SentenceVectors"]

_TRAINING = ("torch", "transformers", "accelerate")  # of the extra `train`

_ABOUT, _HEAD, _MODEL = "classifier.json", "head.safetensors", "model"

_KINDS = "biufU"  # of labels that JSON can represent; objects are checked one by one

_MODELS = 4  # in memory; a grid search creates dozens of estimators with the same model


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator that takes texts. Its parameters with the names of `EncodeOptions` are options of encoding."""

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def _options(self) -> EncodeOptions:
        names = {field.name for field in fields(EncodeOptions)} & set(self._get_param_names())
        return EncodeOptions(**{name: getattr(self, name) for name in names})


class SentenceVectors(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _TextEstimator):  # type: ignore[misc]
    """A transformer of texts to (n, dim) vectors. Nothing is learned: `transform` works without `fit`.

    The parameters are those of `gemel.EncodeOptions`. An estimator has only the name of the model, so that it is cheap
    to clone and to pickle; the model is loaded on first use and shared within the process.
    """

    def __init__(
        self,
        model: str | Path = "all-MiniLM-L6-v2",
        *,
        dim: int | None = None,
        precision: Precision | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        normalize: bool | None = None,
        on_long: OnLong = "warn",
        threads: int | None = None,
    ) -> None:
        self.model = model
        self.dim = dim
        self.precision = precision
        self.prompt = prompt
        self.prompt_name = prompt_name
        self.normalize = normalize
        self.on_long = on_long
        self.threads = threads

    def fit(self, X: Any, y: object = None) -> Self:  # noqa: ANN401, ARG002, N803, RUF100 - their names
        """Check the texts and the parameters."""
        texts_of(X)
        self._ready()
        return self

    def transform(self, X: Any) -> AnyVectors:  # noqa: ANN401, N803 - their names
        """(n, dim) float32, in the order of the texts."""
        texts = texts_of(X)
        return self._ready().encode(texts, self._options())

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # texts in, float32 out
        tags.requires_fit = False
        return tags

    @property
    def _n_features_out(self) -> int:
        """For `get_feature_names_out`."""
        return self.dim or shared_model(self.model).dim

    def _ready(self) -> Model:
        """The model; raises for a prompt that it does not have, or a `dim` that is too large."""
        model = shared_model(self.model)
        model.prepare([], self._options())
        return model


class FewShotClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """A classifier of texts that learns from a few examples of each class.

    tune: train the encoder on pairs of the examples, which helps most for a plain encoder. False: only fit the head.
    None: tune if the extra `train` is installed (`tuned_` says what was done).
    partners: the maximum of pairs per text within its class; equally many pairs are drawn across classes.
    epochs: over these pairs. None: the fewer examples a class has, the more: 32 divided by their number, at least 1.
    C: as in LogisticRegression; smaller means more regularization.
    folder: of the tuned model; None: a temporary folder, deleted with the classifier. A classifier with a temporary
    model cannot be pickled; use `save` and `load`.
    """

    def __init__(  # noqa: PLR0913 - scikit-learn requires each parameter by name
        self,
        model: str | Path = "all-MiniLM-L6-v2",
        *,
        tune: bool | None = False,
        partners: int = 8,
        epochs: float | None = None,
        batch_size: int = 16,
        learning_rate: float = 1e-4,
        C: float = 10.0,  # noqa: N803 - their name
        prompt: str | None = None,
        prompt_name: str | None = None,
        precision: Precision | None = None,
        on_long: OnLong = "warn",
        threads: int | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
    ) -> None:
        self.model = model
        self.tune = tune
        self.partners = partners
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.C = C
        self.prompt = prompt
        self.prompt_name = prompt_name
        self.precision = precision
        self.on_long = on_long
        self.threads = threads
        self.seed = seed
        self.folder = folder

    def fit(self, X: Any, y: Any) -> Self:  # noqa: ANN401, N803 - their names
        """Learn from the texts `X` and their classes `y`."""
        texts = texts_of(X)
        labels = _labels(y, len(texts))
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            label = self.classes_.tolist()[0]
            raise InputError(f"all texts are of one class, {label!r}. Give texts of two classes or more")
        self._forget()
        self.tuned_ = _can_train() if self.tune is None else bool(self.tune)
        self.encoder_ = self._tune(texts, numbers) if self.tuned_ else str(self.model)
        self.head_ = fit_head(self._encode(texts), numbers, C=self.C, seed=self.seed)
        return self

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: ANN401, N803 - their names
        """(n,) the most probable class of each text."""
        best = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: ANN401, N803 - their names
        """(n, classes) probabilities in the order of `classes_`."""
        return np.asarray(softmax(self._scores(X)))

    def decision_function(self, X: Any) -> NDArray[np.float64]:  # noqa: ANN401, N803 - their names
        """(n, classes) logits; for two classes (n,) those of the second."""
        scores = self._scores(X)
        return scores[:, 1] if len(self.classes_) == 2 else scores

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the classifier to a folder: JSON, safetensors, and the model unless it has a name.

        A model with a name is not copied; `load` checks that it is still the same.
        """
        check_is_fitted(self, "head_")
        target = Path(folder).absolute()
        _check_target(target, overwrite)
        own = Path(self.encoder_).expanduser().is_dir()
        about = {
            "parameters": {name: _as_json(value) for name, value in self.get_params().items()}
            | {"folder": None},
            "classes": _plain(self.classes_),
            "dtype": "object" if self.classes_.dtype == object else self.classes_.dtype.str,
            "model": None if own else self.encoder_,
            "fingerprint": self._digest(),
            "tuned": self.tuned_,
        }
        with atomic_folder(target) as working:
            write_json(working / _ABOUT, about)
            tensors = {"weight": self.head_.weight, "bias": self.head_.bias}
            save_file({name: np.ascontiguousarray(each) for name, each in tensors.items()}, working / _HEAD)
            if own:
                self._model().save(working / _MODEL)
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The classifier that `save` wrote."""
        classifier, saved = cls._read(Path(folder).expanduser())
        now = classifier._digest()
        if now != saved:
            raise ModelError(
                f"the vectors of the model {classifier.encoder_} differ ({now}) from when the classifier was saved "
                f"({saved}). Restore that model, or fit the classifier again"
            )
        return classifier

    @classmethod
    def _read(cls, folder: Path) -> tuple[Self, str]:
        """The classifier in a folder, and the fingerprint of the vectors that its head was fitted on."""
        if not (folder / _ABOUT).is_file():
            raise ModelError(
                f"no classifier in {folder}: there is no {_ABOUT}. Give a folder that save() wrote"
            )
        about = read_object(folder / _ABOUT)
        try:
            parameters, tensors = {**about["parameters"]}, load_file(folder / _HEAD)
            unknown = sorted(set(parameters) - set(cls._get_param_names()))
            classifier = cls(**{name: parameters[name] for name in set(parameters) - set(unknown)})
            classifier.classes_ = np.array(about["classes"], dtype=np.dtype(about["dtype"]))
            classifier.head_ = LogisticHead(tensors["weight"], tensors["bias"])
            classifier.encoder_ = about["model"] or str(folder / _MODEL)
            classifier.tuned_, fingerprint = about["tuned"], about["fingerprint"]
        except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
            raise ModelError(f"the classifier in {folder} cannot be read: {error}. Save it again") from error
        if unknown:
            raise ModelError(
                f"the saved classifier has the parameter {unknown[0]!r}, which FewShotClassifier does not take. "
                f"It takes: {', '.join(cls._get_param_names())}. "
                "Load it with the version that saved it, or fit it again"
            )
        return classifier, fingerprint

    def __getstate__(self) -> Any:  # noqa: ANN401 - as BaseEstimator's
        if getattr(self, "_temporary", None) is not None:
            raise InputError(
                "the tuned model of this classifier is in a temporary folder and cannot be pickled. "
                "Use save(folder) and load(folder), or name its folder: FewShotClassifier(folder=...)"
            )
        return super().__getstate__()

    _temporary: weakref.finalize[Any, Any] | None
    """Removes the temporary folder; None where there is none."""

    def _tune(self, texts: list[str], numbers: NDArray[np.int64]) -> str:
        """Train on pairs and return the folder of the trained model."""
        from gemel.training.train import train

        prompt = shared_model(self.model).fingerprint_for(self._options()).prompt
        prompted = [prompt + text for text in texts]
        out = self._model_folder()
        train(
            self.model,
            pairs_from_labels(prompted, numbers, partners=self.partners, seed=self.seed),
            objective="regression",
            out=out,
            epochs=_epochs(len(texts) / len(self.classes_)) if self.epochs is None else self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            threads=self.threads,
            seed=self.seed,
            checkpoint_steps=10**9,  # no checkpoints: training takes minutes
            force=True,  # few directions, those of the classes, are the aim and not a collapse
        )
        return str(out)

    def _model_folder(self) -> Path:
        """The folder for the trained model."""
        if self.folder is not None:
            return Path(self.folder)
        temporary = Path(tempfile.mkdtemp(prefix="gemel-few-shot-"))
        self._temporary = weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
        return temporary / "model"

    def _forget(self) -> None:
        """Remove the temporary model of an earlier fit."""
        earlier = getattr(self, "_temporary", None)
        if earlier is not None:
            earlier()
        self._temporary = None

    def _model(self) -> Model:
        return shared_model(self.encoder_)

    def _digest(self) -> str:
        """The fingerprint of the vectors."""
        return self._model().fingerprint_for(self._options()).digest

    def _encode(self, texts: list[str]) -> AnyVectors:
        return self._model().encode(texts, self._options())

    def _scores(self, given: object) -> NDArray[np.float64]:
        check_is_fitted(self, "head_")
        return self.head_.scores(self._encode(texts_of(given)))


def _labels(given: Any, texts: int) -> NDArray[Any]:  # noqa: ANN401 - a list, array or column of any labels
    if given is None:
        raise InputError("requires y to be passed, but the target y is None: give the class of each text")
    labels = column_or_1d(given)
    check_classification_targets(labels)
    if len(labels) != texts:
        raise InputError(f"{texts:,} texts but {len(labels):,} classes: give one class per text")
    return np.asarray(labels)


def _can_train() -> bool:
    return all(find_spec(package) is not None for package in _TRAINING)


def texts_of(given: Any) -> list[str]:  # noqa: ANN401 - a list, an array, a column or a frame of one column
    """The texts of a list, an array, a Series, or a table of one column."""
    if isinstance(given, str | bytes):
        raise InputError("the input must be a list of texts, got one string. Write [text]")
    if getattr(given, "ndim", 1) == 2:
        columns = given.shape[1]
        if columns != 1:
            raise InputError(
                f"the input must be one column of texts, got {columns}. Select a column, or use ColumnTransformer "
                "with a SentenceVectors for each column"
            )
        given = np.asarray(given, dtype=object)[:, 0]
    return check_texts(given)


def shared_model(model: object) -> Model:
    """The model of a name or folder, shared by all estimators of the process; a changed folder is loaded again."""
    if not isinstance(model, str | Path):
        kind = type(model).__name__
        raise InputError(
            f"model must be a name or a folder, so that it can be cloned and pickled; got a {kind}"
        )
    folder = Path(model).expanduser()
    stamp = max((path.stat().st_mtime_ns for path in folder.iterdir()), default=0) if folder.is_dir() else 0
    return _loaded(str(model), stamp)


@lru_cache(maxsize=_MODELS)
def _loaded(model: str, stamp: int) -> Model:
    """`stamp` changes with the files of a folder."""
    return load(model)


@dataclass(frozen=True, eq=False)
class LogisticHead:
    """Weights of each class; of two classes the first has zeros."""

    weight: NDArray[np.float64]
    """(classes, dim)"""
    bias: NDArray[np.float64]
    """(classes,)"""

    def scores(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        """(n, classes) logits. The bits of a row do not depend on the other rows."""
        wide = vectors.astype(np.float64)
        # Not a matrix product: the order of additions in BLAS depends on the number of rows.
        return np.stack([(wide * row).sum(axis=1) for row in self.weight], axis=1) + self.bias


def fit_head(
    vectors: NDArray[Any],
    numbers: NDArray[np.int64],
    *,
    C: float,  # noqa: N803 - LogisticRegression's name
    seed: int,
) -> LogisticHead:
    """Logistic regression with an L2 penalty; `C` is that of scikit-learn."""
    if not C > 0:
        raise InputError(f"C must be more than 0, got {C!r}")
    with one_thread("the few-shot classifier"):
        model = LogisticRegression(C=C, max_iter=2000, random_state=seed).fit(
            vectors.astype(np.float64), numbers
        )
    weight, bias = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(weight) == 1:  # for two classes scikit-learn has only the second
        weight, bias = np.concatenate([np.zeros_like(weight), weight]), np.append(0.0, bias)
    return LogisticHead(weight, bias)


def _epochs(examples: float) -> int:
    """Of classes with this many examples on average, so that few pairs are seen often enough."""
    return max(1, round(32 / examples))


def pairs_from_labels(
    texts: Sequence[str], labels: NDArray[np.int64], *, partners: int, seed: int
) -> dict[str, list[Any]]:
    """Training data: pairs within classes (score 1), and equally many random pairs across classes (score 0).

    Within classes there are on average at most `partners` per text. All pairs are distinct, and none has two equal
    texts.
    """
    random = np.random.default_rng(seed)
    same_class = [pair for label in np.unique(labels) for pair in _within(labels == label, partners, random)]
    same_class = [(i, j) for i, j in same_class if texts[i] != texts[j]]
    if not same_class:
        raise InputError(
            "no class has two different texts, so there are no pairs to train on. "
            "Give at least two texts of each class, or fit only the head: tune=False"
        )
    different_class = _across(texts, labels, len(same_class), random)
    chosen = [*same_class, *different_class]
    return {
        "left": [texts[i] for i, _ in chosen],
        "right": [texts[j] for _, j in chosen],
        "score": [1.0] * len(same_class) + [0.0] * len(different_class),
    }


def _within(members: NDArray[np.bool_], partners: int, random: np.random.Generator) -> list[tuple[int, int]]:
    """All pairs of one class, or a random sample for a class with more than `partners` + 1 texts."""
    rows = np.flatnonzero(members).tolist()
    most = len(rows) * partners // 2
    if len(rows) <= partners + 1:
        return list(combinations(rows, 2))
    pairs: dict[tuple[int, int], None] = {}
    while len(pairs) < most:  # there are more pairs than `most`, so this ends
        one, other = random.choice(len(rows), size=2, replace=False).tolist()
        pairs[min(rows[one], rows[other]), max(rows[one], rows[other])] = None
    return list(pairs)


def _across(
    texts: Sequence[str], labels: NDArray[np.int64], count: int, random: np.random.Generator
) -> list[tuple[int, int]]:
    """`count` distinct pairs across classes, or fewer if not found in 100 draws per pair."""
    pairs: dict[tuple[int, int], None] = {}
    for _ in range(100 * count):
        if len(pairs) == count:
            break
        one, other = random.integers(len(texts), size=2).tolist()
        if labels[one] != labels[other] and texts[one] != texts[other]:
            pairs[min(one, other), max(one, other)] = None
    return list(pairs)


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        raise InputError(
            f"{target} exists and is not empty. Give a new folder, or overwrite it (overwrite=True)"
        )
    if not (target / _ABOUT).is_file():
        raise InputError(f"{target} has no classifier and is not overwritten. Give a new folder")


def _plain(classes: NDArray[Any]) -> list[Any]:
    """The labels as JSON values."""
    values: list[Any] = classes.tolist()
    if classes.dtype.kind in _KINDS or all(isinstance(value, str | bool | int | float) for value in values):
        return values
    raise InputError(f"classes of the type {classes.dtype} cannot be saved as JSON. Use texts or numbers")


def _as_json(value: object) -> object:
    """A parameter as a JSON value; a grid search sets numbers of numpy."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value
