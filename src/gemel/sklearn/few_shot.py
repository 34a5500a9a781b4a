"""`FewShotClassifier`: a logistic head on vectors, and if asked an encoder that the few texts tune by pairs first.

The idea is SetFit's (arXiv 2209.11055): eight texts of a class are 28 pairs that belong together.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from gemel.errors import InputError
from gemel.model import Model
from gemel.options import EncodeOptions, OnLong, Precision
from gemel.sklearn.head import fit_head, probabilities
from gemel.sklearn.label_pairs import pairs_from_labels
from gemel.sklearn.stored import StoredClassifier, read_classifier, write_classifier
from gemel.sklearn.texts import shared_model, texts_of
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
        from gemel.train_models import train

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
