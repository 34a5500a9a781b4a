"""From a model and texts to a new model folder whose vectors use their space more evenly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.write import check_target, write_checkpoint
from gemel.errors import InputError
from gemel.postprocess.isotropy import Isotropy, isotropy
from gemel.postprocess.methods import METHODS, Fitted, Settings
from gemel.types import AnyVectors


class SavedModel(Protocol):
    """What is needed of a model: its files, and vectors before they are normalised."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    def encode(self, texts: Sequence[str], *, normalize: bool) -> AnyVectors: ...


@dataclass(frozen=True)
class Postprocessed:
    """A model that was saved with one more layer."""

    folder: Path
    method: str
    fitted: Fitted
    texts: int
    """Distinct texts that the layer was fitted on."""
    before: Isotropy
    after: Isotropy

    @property
    def dim(self) -> int:
        return int(self.fitted.layer.weight.shape[0])

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "method": self.method,
            "texts": self.texts,
            "dim": self.dim,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "note": self.fitted.note,
        }


def save_postprocessed(
    model: SavedModel,
    texts: Iterable[str],
    folder: Path | str,
    *,
    method: str = "whitening",
    settings: Settings | None = None,
    overwrite: bool = False,
) -> Postprocessed:
    """Fit `method` on the distinct texts, and save the model with it as its last layer, then length 1.

    Length 1, since the vectors are meant to be compared by cosine.
    """
    fit = METHODS[method]
    check_target(Path(folder), model.checkpoint, overwrite)  # before minutes of work, not after
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 2:
        raise InputError(f"a fit needs at least 2 different texts, got {len(distinct)}. Give a few thousand")
    vectors = model.encode(distinct, normalize=False)
    fitted = fit(vectors, settings or Settings())
    layers = (*model.checkpoint.dense, fitted.layer)
    path = write_checkpoint(model.checkpoint, folder, dense=layers, normalize=True, overwrite=overwrite)
    return Postprocessed(
        folder=path,
        method=method,
        fitted=fitted,
        texts=len(distinct),
        before=isotropy(vectors),
        after=isotropy(fitted.apply(vectors)),
    )
