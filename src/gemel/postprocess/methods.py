"""The methods by the names that users type; each fits on unlabelled vectors and gives a layer for the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from numpy.typing import ArrayLike

from gemel.checkpoint.head import Dense
from gemel.errors import InputError
from gemel.postprocess.centring import fit_all_but_the_top, fit_centring
from gemel.postprocess.flow import fit_flow
from gemel.postprocess.whitening import fit_whitening
from gemel.registry import Table
from gemel.types import Vectors


class Fitted(Protocol):
    """What a method found."""

    @property
    def layer(self) -> Dense: ...

    @property
    def note(self) -> str: ...

    def apply(self, vectors: ArrayLike) -> Vectors: ...


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the methods; one that a method does not have must stay None."""

    dim: int | None = None
    """whitening: directions to keep. None: all."""
    remove: int | None = None
    """all-but-the-top: directions to take away. None: a hundredth of the dimensions."""
    epochs: int | None = None
    """flow: passes over the vectors. None: 4."""
    seed: int | None = None
    """flow: of the first weights and the order of vectors. None: 0."""


METHODS: Table[Callable[[ArrayLike, Settings], Fitted]] = Table("method")


@METHODS.add("whitening")
def _whitening(vectors: ArrayLike, settings: Settings) -> Fitted:
    _only("whitening", settings, "dim")
    return fit_whitening(vectors, settings.dim)


@METHODS.add("centring")
def _centring(vectors: ArrayLike, settings: Settings) -> Fitted:
    _only("centring", settings)
    return fit_centring(vectors)


@METHODS.add("all-but-the-top")
def _all_but_the_top(vectors: ArrayLike, settings: Settings) -> Fitted:
    _only("all-but-the-top", settings, "remove")
    return fit_all_but_the_top(vectors, settings.remove)


@METHODS.add("flow")
def _flow(vectors: ArrayLike, settings: Settings) -> Fitted:
    _only("flow", settings, "epochs", "seed")
    epochs = 4 if settings.epochs is None else settings.epochs
    return fit_flow(vectors, epochs=epochs, seed=settings.seed or 0)


def _only(method: str, settings: Settings, *own: str) -> None:
    given = [name for name, value in vars(settings).items() if value is not None and name not in own]
    if given:
        has = f"it has {', '.join(own)}" if own else "it has no settings"
        raise InputError(f"the method {method!r} has no setting {given[0]!r}; {has}")
