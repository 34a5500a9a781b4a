"""Canaries: vectors of a few fixed texts, recorded with a model, that show when another version gives other vectors.

A record is a small JSON file in `.gemel/` beside the model, or in the cache where that folder cannot be written, one
for each engine and precision. It lists the environments (versions, kernel, times of the model's files) whose vectors
agree. In one of these nothing is computed. In another one the texts are encoded again, once, after the first text of
the program; vectors beyond the tolerance are a warning, and then they are recorded too. Other weights are a new record.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gemel.checkpoint.cache import cache_root, make_folder
from gemel.checkpoint.folder import Checkpoint
from gemel.encoder.engines.engine import Engine
from gemel.encoder.tokenizer import TOKENIZERS_VERSION, outside
from gemel.errors import GemelError
from gemel.files.atomic import write_atomic
from gemel.options import Precision
from gemel.types import ShownResult, Vectors

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
"""Short and long, of several scripts; an index keeps the vectors of all, a model those of the first four."""

TEXTS = CANARIES[:4]

DIFFERENCE = 1e-5
"""float32: the largest difference of a number, with vectors of length 1, that kernels and versions explain."""

COSINE = 0.999
"""int8 and bfloat16: the smallest cosine; engines round differently, and bfloat16 is computed in float32 where the
processor has no instructions for it."""

QUERY = ("query",)
"""The choice that tells the query side of a model from that of documents."""

_FORMAT = 1
_MOST_BYTES = 10_000_000
_MOST = 20  # environments of one set of vectors: machines that share a folder, copies of it
_OFF = ("0", "no", "false", "off")
_SETTINGS = (
    *("modules.json", "config.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("router_config.json", "tokenizer_config.json", "special_tokens_map.json", "adapter_config.json"),
)
_PACKAGES = {"onnxruntime": ("onnxruntime",), "torch": ("torch", "transformers")}
"""What computes the vectors besides gemel, tokenizers and NumPy."""

Encode = Callable[[Sequence[str], Precision], Vectors]


class VectorsChangedWarning(UserWarning):
    """A model gives other vectors for the same texts than it did with an earlier version or on another processor."""

    code = "GEM-209"


@dataclass(frozen=True)
class Distance:
    """How far two sets of vectors of the same texts are apart, each scaled to length 1."""

    difference: float
    """The largest difference of a number."""
    cosine: float
    """The smallest cosine of a text."""

    @classmethod
    def between(cls, recorded: Vectors, now: Vectors) -> Distance:
        """Vectors of another length are as far as can be."""
        if recorded.shape != now.shape:
            return cls(1.0, 0.0)
        one, other = (_unit(vectors.astype(np.float64)) for vectors in (recorded, now))
        both_zero = ~one.any(axis=1) & ~other.any(axis=1)
        cosines = np.where(both_zero, 1.0, (one * other).sum(axis=1))
        return cls(float(np.abs(one - other).max(initial=0)), float(cosines.min(initial=1)))

    def within(self, precision: str) -> bool:
        """Not more than other kernels explain."""
        return self.difference <= DIFFERENCE if precision == "float32" else self.cosine >= COSINE


@dataclass(frozen=True)
class CanaryCheck(ShownResult):
    """The canary texts, encoded now and compared with what was recorded."""

    model: str
    recorded: str
    """When, as a date and time in UTC."""
    then: Mapping[str, str]
    """The environment that recorded the vectors: versions, kernel, engine, precision."""
    now: Mapping[str, str]
    difference: float
    """The largest difference of a number, with vectors of length 1."""
    cosine: float
    """The smallest cosine of a text."""
    holds: bool
    """The vectors are within the tolerance; a first record always is."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"then": _shown(self.then), "now": _shown(self.now)}

    def summary(self) -> str:
        """One line for a person."""
        if not self.holds:
            return self.message()
        what = f"{self.now['engine']} {self.now['precision']}, recorded {self.recorded[:10]}"
        return f"{what}, largest difference {self.difference:.1e}, smallest cosine {self.cosine:.6f}"

    def message(self) -> str:
        """What changed, how far, and what to do."""
        one, other = _shown(self.then), _shown(self.now)
        names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        then, now = (
            ", ".join(f"{name} {each[name]}" for name in names if name in each) for each in (one, other)
        )
        copied = "; the model's files were copied or written in between" * (
            self.then.get("files") != self.now.get("files")
        )
        tolerance = (
            f"a difference of {DIFFERENCE:.0e}"
            if self.now["precision"] == "float32"
            else f"a cosine of {COSINE}"
        )
        return (
            f"{self.model} gives other vectors than on {self.recorded[:10]} ({self.now['engine']}, "
            f"{self.now['precision']}): the smallest cosine of {len(TEXTS)} fixed texts is {self.cosine:.6f} and the "
            f"largest difference {self.difference:.1e}, beyond {tolerance}. Then: {then or 'the same versions'}; now: "
            f"{now or 'the same versions'}{copied}. Do not compare new vectors with stored ones: encode the stored "
            "texts again, or go back to those versions. This is said once; GEMEL_CANARIES=0 turns the check off"
        )


@dataclass(frozen=True, eq=False)
class _Vectors:
    """Vectors, and the environments that gave them; the first one recorded them."""

    recorded: str
    vectors: Vectors
    environments: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, eq=False)
class CanaryRecord:
    """The content of a file: sets of vectors, the newest last, of the model with one content."""

    content: str
    """`quick_digest` of the model's files."""
    texts: tuple[str, ...]
    sets: tuple[_Vectors, ...]

    def knows(self, environment: Mapping[str, str]) -> bool:
        """The vectors of this environment were compared before."""
        return any(environment in each.environments for each in self.sets)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        sets = [
            {
                "recorded": each.recorded,
                "vectors": pack_vectors(each.vectors),
                "environments": list(map(dict, each.environments)),
            }
            for each in self.sets
        ]
        return {"format": _FORMAT, "content": self.content, "texts": list(self.texts), "sets": sets}

    @classmethod
    def from_json(cls, content: Any) -> CanaryRecord:  # noqa: ANN401 - whatever is in the file
        """An error of Python for what is not a record."""
        if content["format"] != _FORMAT:
            raise ValueError(content["format"])
        texts = tuple(content["texts"][: len(CANARIES)])
        for text in texts:
            text.encode("utf-8")  # what is no text, or has half a character, is refused
        sets = tuple(
            _Vectors(
                str(each["recorded"]),
                unpack_vectors(each["vectors"], len(texts)),
                tuple({str(key): str(value) for key, value in one.items()} for one in each["environments"]),
            )
            for each in content["sets"]
        )
        if not texts or not sets or not all(each.environments for each in sets):
            raise ValueError("empty")
        return cls(str(content["content"]), texts, sets)


class Canary:
    """The canaries of one model, or of one side of it; safe to use from several threads."""

    def __init__(self, checkpoint: Checkpoint, choices: Sequence[str] = ("cpu",)) -> None:
        """`choices` of the caller of `load`, and the side: what has a record of its own."""
        self._checkpoint, self._choices = checkpoint, tuple(choices)
        self._checked: set[str] = set()
        self._lock = threading.Lock()

    def check(self, engine: Engine, precision: Precision, encode: Encode) -> None:
        """Compare once per program and precision, where this environment is new, and warn; never an error."""
        with self._lock:
            if precision in self._checked:  # also while `encode` below runs
                return
            self._checked.add(precision)
        if is_off():
            return
        result = None
        with suppress(OSError, GemelError):
            result = self._compare(engine, precision, encode, again=False)
        if result is not None and not result.holds:
            warnings.warn(result.message(), VectorsChangedWarning, stacklevel=outside())

    def compare(self, engine: Engine, precision: Precision, encode: Encode) -> CanaryCheck:
        """Encode the texts and compare them with the newest record; in a known environment the bits must be equal."""
        with self._lock:
            self._checked.add(precision)
        result = self._compare(engine, precision, encode, again=True)
        assert result is not None, "nothing is left out"
        return result

    def _compare(
        self, engine: Engine, precision: Precision, encode: Encode, *, again: bool
    ) -> CanaryCheck | None:
        """None where the record knows this environment already, unless `again`."""
        store = CanaryStore(self._checkpoint, engine.name, precision, self._choices)
        now = environment(engine.name, getattr(engine, "level", None), precision, store.files)
        record = store.read()
        known = record is not None and record.knows(now)
        if known and not again:
            return None
        content = store.content()
        if record is not None and record.content != content:
            record = None  # other weights or settings: nothing to compare with
        vectors = encode(TEXTS if record is None else record.texts, precision)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        if record is None:
            store.write(CanaryRecord(content, TEXTS, (_Vectors(when, vectors, (now,)),)))
            return CanaryCheck(self._checkpoint.name, when, now, now, 0.0, 1.0, True)
        last = record.sets[-1]
        distance, then = Distance.between(last.vectors, vectors), last.environments[0]
        holds = distance.difference == 0 if now in last.environments else distance.within(precision)
        if not known:
            store.write(_with(record, now, vectors, when, joins=holds))
        if not holds and any(_shown(now) == _shown(each) for each in last.environments) and not known:
            # The same versions give other vectors: the files were changed where `quick_digest` does not look.
            then, distance, holds = now, Distance(0.0, 1.0), True
        return CanaryCheck(
            self._checkpoint.name, last.recorded, then, now, distance.difference, distance.cosine, holds
        )


def _with(
    record: CanaryRecord, now: Mapping[str, str], vectors: Vectors, when: str, *, joins: bool
) -> CanaryRecord:
    """The record with one more environment: among those with the same vectors, or with vectors of its own."""
    *before, last = record.sets
    if not joins:
        return CanaryRecord(
            record.content, record.texts, (*before[-_MOST:], last, _Vectors(when, vectors, (now,)))
        )
    first, *others = last.environments
    environments = (first, *others[-_MOST:], now)
    return CanaryRecord(
        record.content, record.texts, (*before, _Vectors(last.recorded, last.vectors, environments))
    )


class CanaryStore:
    """The file of one record."""

    def __init__(
        self, checkpoint: Checkpoint, engine: str, precision: str, choices: Sequence[str] = ("cpu",)
    ) -> None:
        self._checkpoint = checkpoint
        own = [path.name for path in checkpoint.parts[:1]]  # a folder may hold several GGUF files
        named = [*own, str(checkpoint.config.get("default_task")), checkpoint.kind, *choices]
        key = hashlib.sha256(json.dumps(named).encode("ascii")).hexdigest()[:8]
        self._name = f"canary-{engine}-{precision}-{key}.json"

    @property
    def paths(self) -> tuple[Path, Path]:
        """Beside the model, and in the cache."""
        folder = self._checkpoint.folder.resolve()
        key = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        return folder / ".gemel" / self._name, cache_root() / "canaries" / f"{key}-{self._name}"

    @cached_property
    def _files(self) -> list[Path]:
        """All that the vectors depend on: weights, tokenizer, and settings, also those of modules in sub-folders."""
        checkpoint = self._checkpoint
        files = [*checkpoint.parts, checkpoint.tokenizer_file]
        if checkpoint.tokenizer_file.suffix == ".gguf":
            return list(dict.fromkeys(files))
        with os.scandir(checkpoint.folder) as entries:
            folders = sorted(Path(entry.path) for entry in entries if entry.is_dir())
        settings = [folder / name for folder in (checkpoint.folder, *folders) for name in _SETTINGS]
        return list(dict.fromkeys([*files, *(path for path in settings if path.is_file())]))

    @cached_property
    def files(self) -> str:
        """A hash of sizes and times: equal while no file is written or copied."""
        stats = [path.stat() for path in self._files]
        stamps = [(at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for at in stats]
        return hashlib.sha256(repr(stamps).encode("ascii")).hexdigest()[:16]

    def content(self) -> str:
        """A hash of the files, of long ones of samples."""
        from gemel.encoder.int8 import quick_digest

        return quick_digest(self._files)

    def read(self) -> CanaryRecord | None:
        """None where there is none, or a damaged one, which the next `write` replaces."""
        for path in self.paths:
            with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                if path.stat().st_size <= _MOST_BYTES:  # it may have come with the folder, from anywhere
                    return CanaryRecord.from_json(json.loads(path.read_text(encoding="utf-8")))
        return None

    def write(self, record: CanaryRecord) -> None:
        """Atomically, beside the model or in the cache; where neither can be written, nowhere."""
        beside, cached = self.paths
        with suppress(OSError):
            beside.parent.mkdir(exist_ok=True)
            write_atomic(beside, record.to_json())
            return
        with suppress(OSError, GemelError):
            make_folder(cached.parent)
            write_atomic(cached, record.to_json())


def recorded_canaries(checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    """What is recorded of a model that was loaded without choices: when, by what, and whether it holds here.

    `holds` None: vectors of the versions that are installed here were not compared yet.
    """
    sides = [(checkpoint, ()), *([(checkpoint.query_side, QUERY)] if checkpoint.query_side else [])]
    for (side, choices), engine, precision in product(
        sides, ("native", "onnxruntime", "numpy", "torch", "static"), get_args(Precision)
    ):
        store = CanaryStore(side, engine, precision, (*choices, "cpu"))
        if (record := store.read()) is not None:
            yield _status(store, record, engine, precision) | {"side": "query" if choices else None}


def _status(store: CanaryStore, record: CanaryRecord, engine: str, precision: str) -> dict[str, Any]:
    level = None
    if engine == "native":
        from gemel.encoder.engines.native import chosen_level, levels

        level = chosen_level() if levels() else None
    now, last = environment(engine, level, precision, store.files), record.sets[-1]
    holds = now in last.environments if record.knows(now) else None
    return {
        "engine": engine,
        "precision": precision,
        "recorded": last.recorded,
        "by": _shown(last.environments[0]),
        "holds": holds,
        "changes": len(record.sets) - 1,
    }


def environment(engine: str, level: str | None, precision: str, files: str) -> dict[str, str]:
    """What may change the vectors of a model whose files stay the same."""
    package = sys.modules["gemel"]  # loaded, and above this layer
    versions = {"gemel": str(package.__dict__["__version__"]), "tokenizers": TOKENIZERS_VERSION}
    versions |= {"numpy": np.__version__}
    if engine in _PACKAGES:
        from importlib.metadata import version  # takes 10 ms

        versions |= {name: version(name) for name in _PACKAGES[engine]}
    kernel = {} if level is None else {"kernel": level}
    return versions | kernel | {"engine": engine, "precision": precision, "files": files}


def is_off() -> bool:
    """True if GEMEL_CANARIES turns the check off."""
    return os.environ.get("GEMEL_CANARIES", "").lower() in _OFF


def pack_vectors(vectors: Vectors) -> str:
    """float32 numbers as text: what `unpack_vectors` reads."""
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode("ascii")


def unpack_vectors(text: str, rows: int) -> Vectors:
    """(rows, dim)"""
    vectors = np.frombuffer(base64.b64decode(text), "<f4").reshape(rows, -1)
    if not np.isfinite(vectors).all():
        raise ValueError("NaN or infinite")
    return vectors


def _unit(vectors: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray[Any, np.dtype[np.float64]] = vectors / np.where(lengths > 0, lengths, 1)
    return scaled


def _shown(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the times of files, which say nothing to a person."""
    return {name: value for name, value in environment.items() if name != "files"}
