"""Whether a checkpoint will be read, by which engine, and why not.

Checks what loading it checks, but packs no weight and encodes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from gemel.checkpoint.architecture import architecture_of, model_types
from gemel.checkpoint.cross import read_cross
from gemel.checkpoint.folder import (
    Checkpoint,
    is_cross_encoder,
    is_sparse_encoder,
    read_checkpoint,
    static_table,
)
from gemel.checkpoint.modules import is_late_model
from gemel.checkpoint.sparse import SparsePart, Splade, TokenWeights, read_sparse
from gemel.encoder.cross import read_head
from gemel.encoder.late import LateTokenizer, late_network, read_late
from gemel.encoder.sparse import read_masked_head
from gemel.encoder.tokenizer import TextPreparer
from gemel.errors import GemelError, ModelError

ModelKind = Literal["sentence encoder", "cross-encoder", "sparse encoder", "late interaction"]


@dataclass(frozen=True)
class ModelCheck:
    """The answer of `check_model`."""

    readable: bool
    kind: ModelKind | None
    """None: not known."""
    architecture: str | None
    """`model_type` of config.json; None: a table of token vectors, or not known."""
    engine: str | None
    """native, onnxruntime, torch or static; None: none reads it."""
    int8: bool
    """It can also be run in int8."""
    reason: str | None
    """Why it is not readable."""
    notes: tuple[str, ...] = ()
    """What to know about it."""

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {**asdict(self), "notes": list(self.notes)}


def check_model(folder: Path) -> ModelCheck:
    """What gemel will do with the model in `folder`."""
    if is_sparse_encoder(folder):
        return _check_sparse(folder)
    kind: ModelKind | None = None
    architecture = None
    try:
        if is_late_model(folder):
            kind = "late interaction"
            return _check_late(folder)
        cross = is_cross_encoder(folder)
        kind = "cross-encoder" if cross else "sentence encoder"
        pair = read_cross(folder) if cross else None
        checkpoint = read_checkpoint(folder, offline=True) if pair is None else pair.encoder
        named = checkpoint.config.get("model_type") if checkpoint.kind == "transformer" else None
        architecture = None if named is None else str(named)
        TextPreparer(checkpoint)
        engine, int8, notes = _engine(checkpoint)
        if checkpoint.query_side is not None:
            TextPreparer(checkpoint.query_side)
            if not checkpoint.sides_are_tasks:
                notes = (*notes, f"queries are encoded by the engine {_engine(checkpoint.query_side)[0]}")
        if pair is not None and engine != "torch":
            read_head(checkpoint.config, checkpoint.weights, len(pair.labels))
    except GemelError as error:
        return ModelCheck(False, kind, architecture, None, False, str(error))
    return ModelCheck(True, kind, architecture, engine, int8, None, (*checkpoint.notes, *notes))


def _check_sparse(folder: Path) -> ModelCheck:
    try:
        model = read_sparse(folder, offline=True)
        checkpoint, notes = model.document.checkpoint, model.document.checkpoint.notes
        engine, int8, more = _sparse_engine(model.document)
        if model.query is not None:
            notes = (*notes, f"queries are encoded by the engine {_sparse_engine(model.query)[0]}")
    except GemelError as error:
        return ModelCheck(False, "sparse encoder", None, None, False, str(error))
    named = checkpoint.config.get("model_type")
    architecture = None if named is None else str(named)
    load = "load it with gemel.load_sparse(...)"
    return ModelCheck(True, "sparse encoder", architecture, engine, int8, None, (*notes, *more, load))


def _sparse_engine(part: SparsePart) -> tuple[str, bool, tuple[str, ...]]:
    TextPreparer(part.checkpoint)
    if isinstance(part.step, TokenWeights):
        return "static", False, ()
    if isinstance(part.step, Splade):
        read_masked_head(part.checkpoint.config, part.checkpoint.weights)
    return _engine(part.checkpoint)


def _check_late(folder: Path) -> ModelCheck:
    late = read_late(folder)
    LateTokenizer(late)
    late_network(late)
    engine, int8, notes = _engine(late.encoder)
    own = ["load it with gemel.load_late"]
    if late.expansion is not None and not late.expansion.attend:
        own.append("queries run in NumPy, in float32: no token sees the mask tokens that fill them up")
    architecture = str(late.encoder.config.get("model_type"))
    return ModelCheck(True, "late interaction", architecture, engine, int8, None, (*own, *notes))


def _engine(checkpoint: Checkpoint) -> tuple[str, bool, tuple[str, ...]]:
    """The engine, whether it also runs in int8, and notes; an error where no engine runs the checkpoint."""
    if checkpoint.kind == "static":
        static_table(checkpoint)
        return "static", False, ()
    if architecture_of(checkpoint.config) is None:
        return "torch", False, (_check_torch(checkpoint),)
    from gemel.encoder.engines.engine import has_onnxruntime
    from gemel.encoder.engines.native import why_not
    from gemel.encoder.weights import read_network

    network = read_network(checkpoint.config, checkpoint.weights)
    reason = why_not(network)
    if reason is None:
        return "native", True, ()
    notes = (f"the native kernel does not run it: {reason}",)
    return ("onnxruntime", True, notes) if has_onnxruntime() else ("numpy", False, notes)


def _check_torch(checkpoint: Checkpoint) -> str:
    """A note about an architecture that gemel does not read itself; an error where torch is not installed."""
    kind = checkpoint.config.get("model_type")
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise ModelError(
            f"{checkpoint.name} has the architecture {kind!r}, which gemel cannot read itself. "
            f"Known: {', '.join(model_types())}. With torch it may run: pip install 'gemel[train]'",
            code="GEM-205",
        )
    return f"gemel cannot read the architecture {kind!r} itself: it is run by transformers, if that has a class for it"
