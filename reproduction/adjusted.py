"""An encoder whose vectors are post-processed, with a pooling of choice: fitted on texts of the NLI pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.types import Vectors

if TYPE_CHECKING:
    from gemel.model import Model
    from gemel.texts.whitening import Fitted


@dataclass(frozen=True)
class Adjusted:
    """Vectors of the model, then the fitted map."""

    model: Model
    change: Fitted
    threads: int | None = None

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def dim(self) -> int:
        return self.model.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        return self.change.apply(self.model.encode(texts, threads=self.threads))


def adjusted(
    source: str, method: str, pooling: str | None, texts: Sequence[str], threads: int | None
) -> Adjusted:
    import gemel
    from gemel.texts.whitening import METHODS, Settings

    model = gemel.load(source, pooling=pooling)
    fitted = METHODS[method](model.encode(texts, threads=threads), Settings())
    return Adjusted(model, fitted, threads)
