"""Types that many modules share: names of arrays, the protocol of encoders, how results show themselves.

`ShownResult` is the base class of what public functions return; `FixedAttributes` that of models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any, ClassVar, NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.errors import NOT_MEMBERS

Vectors: TypeAlias = NDArray[np.float32]
"""(n, dim) float32, one row per text."""
Ids: TypeAlias = NDArray[np.int32]
"""(b, t) token ids: b texts of exactly t tokens each."""
AnyVectors: TypeAlias = NDArray[Any]  # float32, float16, int8 or packed uint8, as `EncodeOptions.output` says


class Encoder(Protocol):
    """Anything that turns texts into vectors; evaluation and search need no more than this."""

    @property
    def dim(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> AnyVectors: ...


_LINE = 120  # characters of a repr
_ROWS = 20  # rows of a table in a notebook
_CELL = 80  # characters of a text in such a table


class ShownResult:
    """Base class of results: one short line in a console, a table in a notebook, however much they hold."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # A dataclass gets a __repr__ with the whole of every field unless its class has one.
        if "__repr__" not in cls.__dict__:
            setattr(cls, "__repr__", ShownResult.__repr__)  # noqa: B010 - mypy refuses to assign a method

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={short(value)}" for name, value in self._fields())
        line = f"{type(self).__name__}({parts})"
        return line if len(line) <= _LINE else f"{line[: _LINE - 2]}…)"

    def _repr_html_(self) -> str:
        """What Jupyter shows: the first rows, or all fields of a class without rows, below the line of `repr`."""
        from html import escape

        most = _ROWS if type(self)._shown_rows is not ShownResult._shown_rows else len(list(self._fields()))
        rows = list(islice(self._shown_rows(), most + 1))
        names = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(row.get(name, '')))}</td>" for name in names) + "</tr>"
            for row in rows[:most]
        )
        more = f"<p>the first {most} rows</p>" if len(rows) > most else ""
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>{more}"

    def _fields(self) -> Iterator[tuple[str, object]]:
        return ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        """The rows of the table: the fields, unless a class has something better to show."""
        return ({"field": name, "value": short(value)} for name, value in self._fields())


def short(value: object) -> str:
    """A value in a few words: an array by its type and shape, a list by its length."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, str):
        return repr(value if len(value) <= 30 else f"{value[:29]}…")
    if isinstance(value, float | np.floating):
        return f"{float(value):.4g}"
    if value is None or isinstance(value, bool | int | np.integer):
        return str(value)
    if isinstance(value, list | tuple) and len(value) <= 3 and all(_is_plain(each) for each in value):
        inside = ", ".join(map(short, value))
        one = "," if len(value) == 1 else ""
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{one})"
    if isinstance(value, Mapping) and len(value) <= 3 and all(map(_is_plain, value.values())):
        return "{" + ", ".join(f"{key}: {short(each)}" for key, each in value.items()) + "}"
    if hasattr(value, "__len__"):
        return f"{type(value).__name__} of {len(value):,}"
    return f"{type(value).__name__}" if is_dataclass(value) else short(str(value))


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | float | int | np.number)


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        return f"{float(value):.4f}"
    text = value if isinstance(value, str) else short(value)
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


class FixedAttributes:
    """Base class of models: a new attribute, or one of sentence-transformers, is an error that says what to do.

    `model.max_seq_length = 128` would otherwise have no effect, without a word. Private names are for subclasses.
    """

    _settable: ClassVar[frozenset[str]] = frozenset()
    """Public attributes that the constructor sets."""

    def __setattr__(self, name: str, value: object) -> None:
        settable = name in self._settable or name.startswith("_")
        if name in NOT_MEMBERS or not (settable or hasattr(type(self), name)):
            hint = NOT_MEMBERS.get(name, "Options are given to encode, or fixed with model.with_options(...)")
            raise AttributeError(
                f"{type(self).__name__} takes no attribute {name!r}: it would have no effect. {hint}",
                name=name,
                obj=self,
            )
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> NoReturn:
        # An AttributeError, so that hasattr() is False.
        hint = f". {NOT_MEMBERS[name]}" if name in NOT_MEMBERS else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}", name=name, obj=self)


@dataclass(frozen=True)
class EncodeReport(ShownResult):
    """The vectors, and what happened to each text."""

    vectors: AnyVectors
    """(n, dim), in the order of the texts."""
    tokens: NDArray[np.int64]
    """(n,) tokens of each text, special tokens included."""
    kept: NDArray[np.int64]
    """(n,) tokens that were read; equal to `tokens` where nothing was truncated."""
    duplicates: int
    """Texts that equal an earlier one, and were not computed again."""
    seconds: float

    @property
    def truncated(self) -> NDArray[np.int64]:
        """Positions of the texts that lost tokens."""
        return np.flatnonzero(self.kept < self.tokens)

    def summary(self) -> str:
        """One line for people to read."""
        cut = self.truncated
        lost = int((self.tokens - self.kept)[cut].sum())
        parts = [f"{len(self.tokens):,} texts", f"{int(self.tokens.sum()):,} tokens"]
        parts.append(f"{self.duplicates:,} repeated")
        parts.append(f"{len(cut):,} cut ({lost:,} tokens lost)" if len(cut) else "none cut")
        parts.append(f"{self.seconds:.2f} s")
        return ", ".join(parts)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        columns = zip(self.tokens, self.kept, self.vectors, strict=True)
        for position, (tokens, kept, vector) in enumerate(columns):
            yield {"text": position, "tokens": tokens, "kept": kept, "vector": vector}


@dataclass(frozen=True)
class TokenEmbeddings(ShownResult):
    """One text, token by token."""

    tokens: tuple[str, ...]
    vectors: Vectors
    """(t, width): the network's last hidden states, before pooling."""
    skipped: int = 0
    """Tokens at the start that pooling skips: those of a prompt that does not count."""

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for position, token in enumerate(self.tokens):
            yield {"position": position, "token": token, "vector": self.vectors[position]}
