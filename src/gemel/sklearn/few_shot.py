"""`FewShotClassifier`: a logistic head on vectors, and if asked an encoder that the few texts tune by pairs first.

The idea is SetFit's (arXiv 2209.11055): eight texts of a class are 28 pairs that belong together.

The head: logistic regression on vectors, two arrays that are enough to use it.

Few labelled texts -> many labelled pairs: two of a class belong together, two of different classes do not.

A classifier in a folder: classifier.json, head.safetensors, and model/ where the model is no name.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from gemel.checkpoint.files import read_object
from gemel.errors import InputError, ModelError
from gemel.evaluation.probe import one_thread
from gemel.files.atomic import atomic_folder, write_json
from gemel.model import Model
from gemel.options import EncodeOptions, OnLong, Precision
from gemel.sklearn.vectors import shared_model, texts_of
from gemel.types import AnyVectors

_TRAINING = ("torch", "transformers", "accelerate")  # what the extra `train` brings


class FewShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Texts to classes, from a handful of examples of each.

    tune: train the encoder on pairs made of the examples; it pays for a plain encoder. False: the head alone, on the
    model as it is. None: tune where the extra `train` is installed (`tuned_` says what was done).
    partners: pairs within a class that a text is in, at most; as many are drawn across classes.
    C: as in LogisticRegression, smaller is smoother.
    folder: where the tuned model goes; None: a temporary folder that goes when the classifier does. A classifier whose
    model is temporary is not pickled: `save` and `load` keep it in a folder of safetensors and JSON.
    """

    def __init__(  # noqa: PLR0913 - scikit-learn wants each setting by name
        self,
        model: str | Path = "all-MiniLM-L6-v2",
        *,
        tune: bool | None = False,
        partners: int = 8,
        epochs: float = 1.0,
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
            said = self.classes_.tolist()[0]
            raise InputError(f"all texts are of one class, {said!r}. Give texts of two classes or more")
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
        return probabilities(self._scores(X))

    def decision_function(self, X: Any) -> NDArray[np.float64]:  # noqa: ANN401, N803 - their names
        """(n, classes) scores before they become probabilities; (n,) of the second class where there are two."""
        scores = self._scores(X)
        return scores[:, 1] if len(self.classes_) == 2 else scores

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Keep the classifier in a folder: JSON, safetensors, and the model itself where it is no name.

        A model that is known by its name is not copied; `load` makes sure that it is still the same.
        """
        check_is_fitted(self, "head_")
        stored = StoredClassifier(
            parameters={**self.get_params(), "folder": None},
            classes=self.classes_,
            head=self.head_,
            model=self.encoder_,
            fingerprint=self._model().fingerprint_for(self._options()).digest,
            tuned=self.tuned_,
        )
        return write_classifier(stored, self._model(), folder, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The classifier that `save` kept."""
        stored = read_classifier(folder)
        stored.check_parameters(cls._get_param_names())
        found = cls(**stored.parameters)
        found.classes_, found.tuned_, found.encoder_ = stored.classes, stored.tuned, stored.model
        found.head_ = stored.head
        stored.check(found._model().fingerprint_for(found._options()).digest)
        return found

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def __getstate__(self) -> Any:  # noqa: ANN401 - as BaseEstimator's
        if getattr(self, "_temporary", None) is not None:
            raise InputError(
                "the tuned model of this classifier lies in a temporary folder and is not pickled. "
                "Keep it with save(folder) and load(folder), or name its place: FewShotClassifier(folder=...)"
            )
        return super().__getstate__()

    # The encoder: as it is named, or tuned.

    _temporary: weakref.finalize[Any, Any] | None
    """Removes the temporary folder; None where there is none."""

    def _tune(self, texts: list[str], numbers: NDArray[np.int64]) -> str:
        """Train on pairs; the folder of the trained model."""
        from gemel.training.train import train

        prompt = shared_model(self.model).fingerprint_for(self._options()).prompt
        pairs = pairs_from_labels(
            [prompt + text for text in texts], numbers, partners=self.partners, seed=self.seed
        )
        place = self._place()
        train(
            self.model,
            pairs.columns(),
            objective="contrastive",
            settings={"online": True},  # pairs that are right already stay as they are
            out=place,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            threads=self.threads,
            seed=self.seed,
            checkpoint_steps=10**9,  # minutes of work: nothing to take up again
        )
        return str(place)

    def _place(self) -> Path:
        """Where the trained model goes."""
        if self.folder is not None:
            return Path(self.folder)
        place = Path(tempfile.mkdtemp(prefix="gemel-few-shot-"))
        self._temporary = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        return place / "model"

    def _forget(self) -> None:
        """Remove the temporary model of an earlier fit."""
        earlier = getattr(self, "_temporary", None)
        if earlier is not None:
            earlier()
        self._temporary = None

    def _model(self) -> Model:
        return shared_model(self.encoder_)

    def _encode(self, texts: list[str]) -> AnyVectors:
        return self._model().encode(texts, self._options())

    def _options(self) -> EncodeOptions:
        return EncodeOptions(
            prompt=self.prompt,
            prompt_name=self.prompt_name,
            precision=self.precision,
            on_long=self.on_long,
            threads=self.threads,
        )

    def _scores(self, given: object) -> NDArray[np.float64]:
        check_is_fitted(self, "head_")
        return self.head_.scores(self._encode(texts_of(given)))


def _labels(given: Any, texts: int) -> NDArray[Any]:  # noqa: ANN401 - a list, array or column of any labels
    if given is None:
        raise InputError("requires y to be passed, but the target y is None: give the class of each text")
    labels = column_or_1d(given)
    check_classification_targets(labels)
    if len(labels) != texts:
        raise InputError(f"{texts:,} texts but {len(labels):,} classes: give one class a text")
    return np.asarray(labels)


def _can_train() -> bool:
    return all(find_spec(package) is not None for package in _TRAINING)


@dataclass(frozen=True, eq=False)
class LogisticHead:
    """A row for each class; of two classes both have one, the first of zeros."""

    weight: NDArray[np.float64]
    """(classes, dim)"""
    bias: NDArray[np.float64]
    """(classes,)"""

    def scores(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        """(n, classes). A row's bits do not depend on the other rows."""
        wide = vectors.astype(np.float64)
        # Not a matrix product: BLAS adds up in another order for other numbers of rows.
        return np.stack([(wide * row).sum(axis=1) for row in self.weight], axis=1) + self.bias


def probabilities(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, classes) scores to probabilities; rows sum to 1."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def fit_head(
    vectors: NDArray[Any],
    numbers: NDArray[np.int64],
    *,
    C: float,  # noqa: N803 - LogisticRegression's name
    seed: int,
) -> LogisticHead:
    """L2-penalised; `C` as scikit-learn has it."""
    from sklearn.linear_model import LogisticRegression

    if not C > 0:
        raise InputError(f"C must be more than 0, got {C!r}")
    with one_thread("the few-shot classifier"):
        model = LogisticRegression(C=C, max_iter=2000, random_state=seed).fit(
            vectors.astype(np.float64), numbers
        )
    weight, bias = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(weight) == 1:  # of two classes scikit-learn keeps the second only
        weight, bias = np.concatenate([np.zeros_like(weight), weight]), np.append(0.0, bias)
    return LogisticHead(weight, bias)


@dataclass(frozen=True)
class LabelPairs:
    """Rows for training."""

    left: list[str]
    right: list[str]
    label: list[int]
    """1 within a class, 0 across."""

    def columns(self) -> dict[str, list[Any]]:
        """As `gemel.train` takes them."""
        return {"left": self.left, "right": self.right, "label": self.label}


def pairs_from_labels(
    texts: Sequence[str], labels: NDArray[np.int64], *, partners: int, seed: int
) -> LabelPairs:
    """Every two texts of a class, `partners` a text at most on average, and as many drawn across classes.

    No pair comes twice, and none has two equal texts.
    """
    random = np.random.default_rng(seed)
    alike = [pair for label in np.unique(labels) for pair in _within(labels == label, partners, random)]
    alike = [(i, j) for i, j in alike if texts[i] != texts[j]]
    if not alike:
        raise InputError(
            "no class has two different texts, so there are no pairs to learn from. "
            "Give at least two texts of each class, or take the head alone: tune=False"
        )
    unlike = _across(texts, labels, len(alike), random)
    chosen = [*alike, *unlike]
    return LabelPairs(
        left=[texts[i] for i, _ in chosen],
        right=[texts[j] for _, j in chosen],
        label=[1] * len(alike) + [0] * len(unlike),
    )


def _within(members: NDArray[np.bool_], partners: int, random: np.random.Generator) -> list[tuple[int, int]]:
    """Pairs of one class; a class with more than `partners` + 1 texts gives a sample."""
    places = np.flatnonzero(members).tolist()
    most = len(places) * partners // 2
    if len(places) <= partners + 1:
        return list(combinations(places, 2))
    found: dict[tuple[int, int], None] = {}
    while len(found) < most:  # there are more pairs than `most`, so this ends
        one, other = random.choice(len(places), size=2, replace=False).tolist()
        found[min(places[one], places[other]), max(places[one], places[other])] = None
    return list(found)


def _across(
    texts: Sequence[str], labels: NDArray[np.int64], wanted: int, random: np.random.Generator
) -> list[tuple[int, int]]:
    """`wanted` different pairs of two classes, or fewer where a hundred draws a pair find no more."""
    found: dict[tuple[int, int], None] = {}
    for _ in range(100 * wanted):
        if len(found) == wanted:
            break
        one, other = random.integers(len(texts), size=2).tolist()
        if labels[one] != labels[other] and texts[one] != texts[other]:
            found[min(one, other), max(one, other)] = None
    return list(found)


_ABOUT, _HEAD, _MODEL = "classifier.json", "head.safetensors", "model"

_KINDS = "biufU"  # of labels that JSON can say; objects are looked at one by one


@dataclass(frozen=True, eq=False)
class StoredClassifier:
    """All of a classifier but the model's weights."""

    parameters: Mapping[str, Any]
    classes: NDArray[Any]
    head: LogisticHead
    model: str
    """The name or the folder of the model that the head knows."""
    fingerprint: str
    """Of the vectors that the head knows."""
    tuned: bool

    def check_parameters(self, known: Collection[str]) -> None:
        """Refuse parameters that this version does not have."""
        strange = sorted(set(self.parameters) - set(known))
        if strange:
            raise ModelError(
                f"the saved classifier has the parameter {strange[0]!r}, which FewShotClassifier does not take. "
                f"It takes: {', '.join(known)}. Load it with the version that saved it, or fit it again"
            )

    def check(self, fingerprint: str) -> None:
        """Refuse another model than the one that the head was fitted on."""
        if fingerprint != self.fingerprint:
            raise ModelError(
                f"the model {self.model} makes other vectors ({fingerprint}) than when the classifier was saved "
                f"({self.fingerprint}). Give it the model of that time, or fit it again"
            )


def write_classifier(stored: StoredClassifier, model: Model, folder: str | Path, *, overwrite: bool) -> Path:
    """The folder appears whole or not at all; only a classifier is ever overwritten."""
    from safetensors.numpy import save_file

    target = Path(folder).absolute()
    _check_target(target, overwrite)
    classes = _plain(stored.classes)
    own = Path(stored.model).expanduser().is_dir()
    about = {
        "parameters": {name: _said(value) for name, value in stored.parameters.items()},
        "classes": classes,
        "dtype": "object" if stored.classes.dtype == object else stored.classes.dtype.str,
        "model": None if own else stored.model,
        "fingerprint": stored.fingerprint,
        "tuned": stored.tuned,
    }
    with atomic_folder(target) as working:
        write_json(working / _ABOUT, about)
        tensors = {"weight": stored.head.weight, "bias": stored.head.bias}
        save_file({name: np.ascontiguousarray(each) for name, each in tensors.items()}, working / _HEAD)
        if own:
            model.save(working / _MODEL)
    return Path(folder)


def read_classifier(folder: str | Path) -> StoredClassifier:
    """What `write_classifier` wrote."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    place = Path(folder).expanduser()
    if not (place / _ABOUT).is_file():
        raise ModelError(f"no classifier in {place}: there is no {_ABOUT}. Give a folder that save() made")
    about = read_object(place / _ABOUT)
    try:
        tensors = load_file(place / _HEAD)
        return StoredClassifier(
            parameters={**about["parameters"]},
            classes=np.array(about["classes"], dtype=np.dtype(about["dtype"])),
            head=LogisticHead(tensors["weight"], tensors["bias"]),
            model=about["model"] or str(place / _MODEL),
            fingerprint=about["fingerprint"],
            tuned=about["tuned"],
        )
    except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
        raise ModelError(f"the classifier in {place} cannot be read: {error}. Save it again") from error


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        raise InputError(
            f"{target} exists and is not empty. Give a new folder, or overwrite it (overwrite=True)"
        )
    if not (target / _ABOUT).is_file():
        raise InputError(f"{target} holds no classifier and is not overwritten. Give a new folder")


def _plain(classes: NDArray[Any]) -> list[Any]:
    """The labels as JSON has them."""
    values: list[Any] = classes.tolist()
    if classes.dtype.kind in _KINDS or all(isinstance(value, str | bool | int | float) for value in values):
        return values
    raise InputError(f"classes of the type {classes.dtype} cannot be saved as JSON. Use texts or numbers")


def _said(value: object) -> object:
    """A parameter as JSON has it; searches over grids give numpy's numbers."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value
