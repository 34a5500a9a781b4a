"""modules.json of the sentence-transformers layout: the steps of a model, their folders and their order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemel.checkpoint import known_keys
from gemel.checkpoint.flow import FLOW, read_flow
from gemel.checkpoint.head import Dense, Pooling, read_dense, read_pooling
from gemel.checkpoint.json_file import inside, read_json, read_object_if_there
from gemel.errors import ModelError

# The older names are classes of early releases; they hold the same files.
_TRANSFORMERS = {"Transformer", "BERT", "RoBERTa", "DistilBERT", "ALBERT", "CamemBERT", "XLMRoBERTa"}
_KNOWN = ("Transformer", "StaticEmbedding", "Pooling", "Dense", "Normalize", "Dropout")


@dataclass(frozen=True)
class Steps:
    """The first module, and what comes after it."""

    kind: Literal["transformer", "static"]
    folder: Path
    pooling: Pooling | None
    dense: tuple[Dense, ...]
    dense_folders: tuple[Path, ...]
    normalize: bool


def read_steps(folder: Path) -> Steps:
    """modules.json, in its order: Transformer, Pooling, then any Dense or Flow, then Normalize."""
    first: tuple[Literal["transformer", "static"], Path] | None = None
    pooling: Pooling | None = None
    dense: list[tuple[str, Path]] = []
    normalize = False
    for kind, path in _modules(folder):
        misplaced = normalize or (first is None) != (kind in {*_TRANSFORMERS, "StaticEmbedding"})
        if kind == "Dropout" or (kind == "Normalize" and normalize):
            continue  # nothing happens here when a trained model is used
        late = pooling is not None or dense or (first is not None and first[0] == "static")
        if misplaced or (kind == "Pooling" and late):
            raise ModelError(
                f"{folder}: module {kind!r} stands at an unknown place in modules.json. "
                "The order that is read: Transformer or StaticEmbedding, Pooling, any Dense or Flow, Normalize"
            )
        if first is None:
            first = ("static" if kind == "StaticEmbedding" else "transformer", path)
        elif kind == "Pooling":
            pooling = read_pooling(path)
        elif kind in ("Dense", "Flow"):
            dense.append((kind, path))
        else:
            _check_normalize(path)
            normalize = True
    if first is None:
        raise ModelError(f"{folder / 'modules.json'} lists no module")
    layers = tuple(read_flow(folder, p) if kind == "Flow" else read_dense(folder, p) for kind, p in dense)
    return Steps(first[0], first[1], pooling, layers, tuple(path for _, path in dense), normalize)


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """(last word of the type, folder) of each module; old and new class paths end in the same word."""
    listed = read_json(folder / "modules.json")
    modules: list[tuple[str, Path]] = []
    for entry in listed if isinstance(listed, list) else [None]:
        kind, path = (entry.get("type"), entry.get("path", "")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ModelError(
                f"{folder / 'modules.json'} must be a list of modules, each with a type and a path"
            )
        package, _, rest = kind.partition(".")
        word = rest.rpartition(".")[2]
        # A class of another package may have a known name and do anything: its code is in the checkpoint.
        theirs = package == "sentence_transformers" and (word in _TRANSFORMERS or word in _KNOWN)
        if not theirs and kind != FLOW:
            known = ", ".join(_KNOWN)
            raise ModelError(
                f"{folder}: unknown module {kind!r}. Known, of sentence_transformers: {known}; and {FLOW}"
            )
        modules.append((word, inside(folder, path)))
    return modules


def _check_normalize(folder: Path) -> None:
    config = read_object_if_there(folder / "config.json")
    known_keys.refuse_unknown(folder / "config.json", config, known_keys.NORMALIZE)
    for key, value in config.items():
        if key in ("module_input_name", "module_output_name") and value not in (None, "sentence_embedding"):
            raise ModelError(f"{folder}: normalising {value!r} is not supported, only the pooled vector")
