"""`SentenceVectors`: texts to vectors as a step of a scikit-learn pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from gemel.model import Model
from gemel.options import EncodeOptions, OnLong, Precision
from gemel.sklearn.texts import shared_model, texts_of
from gemel.types import AnyVectors


class SentenceVectors(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A column of texts to (n, dim) vectors. There is nothing to learn: `transform` works without `fit`.

    The parameters are those of `gemel.EncodeOptions`. An estimator holds the model's name, never its weights, so that
    it is cheap to clone and to pickle; the model is loaded when it is first needed and shared within the process.
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
        """Look at the texts and the settings, so that what is wrong is said here."""
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
        """What `get_feature_names_out` counts to."""
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
        """The model, if it can do what the settings ask for."""
        model = shared_model(self.model)
        model.prepare(
            [], self._options()
        )  # refuses a prompt that the model does not bring, and too large a dim
        return model
