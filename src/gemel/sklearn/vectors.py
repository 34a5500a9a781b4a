"""`SentenceVectors`: texts to vectors as a step of a scikit-learn pipeline; and the models that estimators share."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.model import Model, load
from gemel.options import EncodeOptions, OnLong, Precision
from gemel.types import AnyVectors


class SentenceVectors(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
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
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []  # texts in, float32 out
        tags.requires_fit = False
        return tags

    @property
    def _n_features_out(self) -> int:
        """For `get_feature_names_out`."""
        return self.dim or shared_model(self.model).dim

    def _options(self) -> EncodeOptions:
        return EncodeOptions(
            dim=self.dim,
            precision=self.precision,
            prompt=self.prompt,
            prompt_name=self.prompt_name,
            normalize=self.normalize,
            on_long=self.on_long,
            threads=self.threads,
        )

    def _ready(self) -> Model:
        """The model; raises for a prompt that it does not have, or a `dim` that is too large."""
        model = shared_model(self.model)
        model.prepare([], self._options())
        return model


_MODELS = 4  # in memory; a grid search creates dozens of estimators with the same model


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
