"""What ties an index to its model: a fingerprint, the prompts and options, and canaries to try it on.

Kept as JSON in the header of the table. A model that differs in anything that changes a vector is refused.

A model's files by size and time, as a shortcut: where these are as they were, their hash is as it was.

What an index works with at one moment; replaced as a whole when the index is migrated.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gemel.checkpoint.fingerprint import Fingerprint
from gemel.errors import ModelError
from gemel.index.encoder import IndexEncoder, ModelIndexEncoder
from gemel.index.port import Table
from gemel.model import Model, load
from gemel.options import EncodeOptions, Precision
from gemel.types import Vectors

CANARIES = (
    "A man is playing a guitar.",
    "no",
    "Die Ölpreise stiegen am Dienstag um 3,5 %, weil weniger gefördert wird.",
    "日本語の文章もベクトルになります。",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "def nearest(query, k=10): return sorted(rows, key=lambda row: -row @ query)[:k]",
    "🙂 C3H8O + 4.5 O2 -> 3 CO2 + 4 H2O; see https://example.org/a?b=1#c",
    "The committee met on Monday to discuss the budget. After four hours of debate the members agreed to postpone the "
    "vote, since two of the reports they had asked for in spring were still missing. A new date has not been set.",
)
"""Short and long, of several scripts; encoded when an index is made and again when it is verified."""

_NO_MATTER = {
    "threads",
    "memory",
    "progress",
    "output",
}  # options that change no vector, or that an index fixes


@dataclass(frozen=True, eq=False)
class Binding:
    """All that a later program needs to make vectors that fit those of the index."""

    model: str
    """Its name, as it was asked for."""
    folder: str
    """Where it was on the machine that made the index."""
    stamp: str
    """Of the model's files there: equal, and their hash need not be computed again."""
    fingerprint: Fingerprint
    """Of the document side."""
    query_prompt: str
    options: EncodeOptions
    passage_tokens: int | None
    canary_texts: Sequence[str]
    canaries: Vectors
    """(8, dim)"""
    gemel: str
    """The version that made the index."""

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        kept = {name: value for name, value in asdict(self.options).items() if name not in _NO_MATTER}
        return {
            "model": self.model,
            "folder": self.folder,
            "stamp": self.stamp,
            "fingerprint": self.fingerprint.to_json(),
            "query_prompt": self.query_prompt,
            "options": kept,
            "passage_tokens": self.passage_tokens,
            "canary_texts": list(self.canary_texts),
            "canaries": base64.b64encode(self.canaries.astype("<f4").tobytes()).decode("ascii"),
            "gemel": self.gemel,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Binding:
        """The binding of a header; further keys are ignored."""
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in content]
        if missing:
            raise ModelError(
                f"the index does not say which model made it: its header has no {', '.join(missing)}"
            )
        values = {name: content[name] for name in names}
        print_ = Fingerprint.from_json(content["fingerprint"])
        known = {field.name for field in fields(EncodeOptions)}
        values["fingerprint"] = print_
        values["options"] = EncodeOptions(**{k: v for k, v in content["options"].items() if k in known})
        values["canaries"] = np.frombuffer(base64.b64decode(content["canaries"]), "<f4").reshape(
            -1, print_.dim
        )
        return cls(**values)


def bind(coder: ModelIndexEncoder) -> Binding:
    """The binding of a new index: encodes the canaries."""
    from importlib.metadata import version

    model = coder.model()
    return Binding(
        model=model.name,
        folder=str(model.checkpoint.folder.resolve()),
        stamp=stamp_of(model),
        fingerprint=coder.fingerprint,
        query_prompt=coder.query_prompt,
        options=coder.options,
        passage_tokens=coder.passage_tokens,
        canary_texts=CANARIES,
        canaries=coder.documents(CANARIES).vectors,
        gemel=version("gemel"),
    )


def differences(binding: Binding, coder: ModelIndexEncoder) -> list[str]:
    """One line for each thing in which a model would make other vectors than the index has."""
    model = coder.model()
    if "weights_hash" not in vars(model) and binding.stamp == stamp_of(model):
        # The files are those that were hashed when the index was made: 0.1 s to 2 s saved at every opening.
        vars(model)["weights_hash"] = binding.fingerprint.weights
    mine, theirs = binding.fingerprint.to_json(), coder.fingerprint.to_json()
    mine |= {"query prompt": binding.query_prompt, "passage_tokens": binding.passage_tokens}
    theirs |= {"query prompt": coder.query_prompt, "passage_tokens": coder.passage_tokens}
    return [
        f"{name}: {_short(mine[name])} in the index, {_short(theirs[name])} now"
        for name in mine
        if mine[name] != theirs[name]
    ]


def check_binding(binding: Binding, coder: ModelIndexEncoder, place: str) -> None:
    """A ModelError that names both sides and each difference, if there is one."""
    found = differences(binding, coder)
    if not found:
        return
    name = coder.model().name
    given = f"{name!r} with other weights or settings" if name == binding.model else repr(name)
    raise ModelError(
        f"the index {place} was made by {binding.model!r}, but was opened with {given}: {'; '.join(found)}. "
        "Open it without a model, or encode it anew with index.migrate(model)"
    )


def made_by(binding: Binding, source: str | Path) -> bool:
    """The name or folder is that of the model which made the index."""
    return str(source) == binding.model or str(Path(source).resolve()) == binding.folder


def load_for(binding: Binding, source: str | Path, *, pooling: bool) -> Model:
    """In the precision of the index and, for the model that made it, with the `pooling` that it was loaded with."""
    made = binding.fingerprint
    precision: Precision = "int8" if made.precision == "int8" else "float32"
    return load(source, precision=precision, pooling=made.pooling if pooling else None)


def _short(value: object) -> str:
    """Hashes are cut: their first digits tell them apart."""
    return repr(value[:12] + "…") if isinstance(value, str) and len(value) == 64 else repr(value)


def stamp_of(model: Model) -> str:
    """Hex digits of path, size, times and inode of each file that computes, and of the settings beside them.

    Another stamp says nothing (a copy has one of its own); the same stamp: the same files on the same machine,
    not written since. "" where a file is gone.
    """
    checkpoint = model.checkpoint
    try:
        files = [
            (str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
            for path in (*checkpoint.parts, checkpoint.tokenizer_file)
            for found in [path.stat()]
        ]
    except OSError:
        return ""
    settings = [
        dict(checkpoint.config),
        [dense.activation for dense in checkpoint.dense],
        checkpoint.kind,
        checkpoint.lowercase,
        checkpoint.skip_unknown,
        asdict(checkpoint.pooling),
        [dict(checkpoint.tokenizer_settings), checkpoint.truncation_side, checkpoint.truncate_dim],
    ]
    said = json.dumps([files, settings], sort_keys=True, default=str)
    return hashlib.sha256(said.encode("ascii")).hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class IndexState:
    """A table, what encodes for it, and what its header says of that."""

    table: Table
    coder: IndexEncoder
    binding: Binding | None
    """None: vectors only, bound to no model."""

    @cached_property
    def dim(self) -> int:
        """Numbers in a vector; read once, as a table never changes it."""
        return self.table.header.dim

    @property
    def passage_tokens(self) -> int | None:
        """As the index recorded it; part of every digest."""
        return None if self.binding is None else self.binding.passage_tokens
