"""The options of encoding texts, dense or sparse, and of scoring pairs: keywords, flags and config keys follow them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol, TypedDict, TypeVar, get_args

from gemel.errors import InputError, keyword_hint

Precision = Literal["float32", "bfloat16", "int8"]

Output = Literal["float32", "float16", "int8", "binary"]

EngineName = Literal["auto", "native", "onnxruntime", "numpy", "torch"]

OnLong = Literal["warn", "error", "truncate", "chunk"]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, kw_only=True)
class EncodeOptions:
    """How texts become vectors. Defaults are those of the checkpoint, or the safe choice."""

    prompt: str | None = None
    """Put in front of every text, unchanged. Overrides `prompt_name`."""
    prompt_name: str | None = None
    """The name of a prompt of the checkpoint, such as "query" or "document"."""
    normalize: bool | None = None
    """Scale each vector to length 1. None: as in the checkpoint."""
    dim: int | None = None
    """Keep only the first `dim` numbers (for models trained with matryoshka), then normalize again."""
    precision: Precision | None = None
    """Numbers used in the computation: float32, bfloat16 (float32 where the processor cannot) or int8 (fastest, nearly
    as good). None: as given to load."""
    output: Output = "float32"
    """Numbers of the result: float32, float16, int8 (only the direction is kept), binary (8 dimensions per byte)."""
    max_length: int | None = None
    """Tokens of a text, special tokens included. None: as in the checkpoint."""
    on_long: OnLong = "warn"
    """A text over `max_length`: warn and cut, error, truncate without a warning, or chunk (windows, averaged)."""
    threads: int | None = None
    """CPU cores to use. None: all that the process may use. Does not change the result."""
    memory: int | str = "256MB"
    """Working memory for activations, all threads together, in bytes or as "1GB". Does not change the result."""
    progress: bool = False
    """Show texts per second and the time left on standard error."""

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, (None, *get_args(Precision)))
        check_choice("output", self.output, get_args(Output))
        check_choice("on_long", self.on_long, get_args(OnLong))
        for name in ("dim", "max_length", "threads"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        parse_bytes(self.memory)

    @classmethod
    def of(cls, options: EncodeOptions | None, keywords: EncodeKeywords) -> EncodeOptions:
        """`options`, or the defaults, with the fields in `keywords` replaced; an unknown name is an error."""
        return with_keywords(options or cls(), keywords, "encode")


class EncodeKeywords(TypedDict, total=False):
    """The fields of `EncodeOptions` as keywords: `encode(texts, dim=128)`."""

    prompt: str | None
    prompt_name: str | None
    normalize: bool | None
    dim: int | None
    precision: Precision | None
    output: Output
    max_length: int | None
    on_long: OnLong
    threads: int | None
    memory: int | str
    progress: bool


def parse_bytes(size: int | str) -> int:
    """A number of bytes from `268435456`, `"256MB"` (10^6) or `"1GiB"` (2^30)."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise InputError(f"memory must be bytes or a size like '256MB' or '1GiB', got {size!r}")
    return int(float(match[1]) * unit)


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a value that is not one of `choices`, such as the arguments of a Literal."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(str(c) for c in choices if c)}, got {value!r}")


def from_environment(variable: str, available: Sequence[str]) -> str:
    """What an environment variable names, one of `available`; the first of those where it is not set."""
    requested = os.environ.get(variable)
    if requested and requested not in available:
        raise InputError(
            f"{variable} is {requested!r}, which this machine does not have. Known: {', '.join(available)}"
        )
    return requested or available[0]


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class CrossOptions:
    """How pairs are scored. Only `precision` and `max_length` change the results."""

    precision: Precision | None = None
    """Numbers used in the computation: float32, bfloat16 or int8. None: as given to load."""
    max_length: int | None = None
    """Tokens of a pair, special tokens included. None: as in the checkpoint."""
    on_long: Literal["warn", "error", "truncate"] = "warn"
    """A pair over `max_length`: warn and cut, error, or truncate without a warning. The longer text is cut first."""
    threads: int | None = None
    """CPU cores to use. None: all that the process may use."""
    memory: int | str = "256MB"
    """Working memory for activations, all threads together, in bytes or as "1GB"."""
    progress: bool = False
    """Show pairs per second and the time left on standard error."""

    def __post_init__(self) -> None:
        EncodeOptions(**asdict(self))  # the same rules and messages
        check_choice("on_long", self.on_long, ("warn", "error", "truncate"))

    @classmethod
    def of(cls, options: CrossOptions | None, keywords: CrossKeywords) -> CrossOptions:
        """`options`, or the defaults, with the fields in `keywords` replaced; an unknown name is an error."""
        return with_keywords(options or cls(), keywords, "a cross-encoder")


class CrossKeywords(TypedDict, total=False):
    """The fields of `CrossOptions` as keywords."""

    precision: Precision | None
    max_length: int | None
    on_long: Literal["warn", "error", "truncate"]
    threads: int | None
    memory: int | str
    progress: bool


@dataclass(frozen=True, kw_only=True)
class SparseOptions:
    """How texts become weights of words. Defaults are those of the checkpoint, or the safe choice."""

    prompt: str | None = None
    """Put in front of every text, unchanged. Overrides `prompt_name`."""
    prompt_name: str | None = None
    """The name of a prompt of the checkpoint, such as "query" or "document"."""
    max_active_dims: int | None = None
    """Weights of a text that are kept, the largest. None: as in the checkpoint, mostly all."""
    min_weight: float | None = None
    """Weights below it are left out. None: all that are not zero are kept."""
    precision: Precision | None = None
    """Numbers used in the network: float32, bfloat16 or int8; its head is always float32. None: as given to load."""
    max_length: int | None = None
    """Tokens of a text, special tokens included. None: as in the checkpoint."""
    on_long: Literal["warn", "error", "truncate"] = "warn"
    """A text over `max_length`: warn and cut, error, or truncate without a warning."""
    threads: int | None = None
    """CPU cores to use. None: all that the process may use."""
    memory: int | str = "256MB"
    """Working memory for activations, all threads together, in bytes or as "1GB"."""
    progress: bool = False
    """Show texts per second and the time left on standard error."""

    def __post_init__(self) -> None:
        self.encode_options()  # the same rules and messages
        check_choice("on_long", self.on_long, ("warn", "error", "truncate"))
        if self.max_active_dims is not None:
            check_count("max_active_dims", self.max_active_dims)
        least = self.min_weight
        if least is not None and (
            isinstance(least, bool) or not isinstance(least, int | float) or not least >= 0
        ):
            raise InputError(f"min_weight must be a number of at least 0, got {least!r}")

    def encode_options(self) -> EncodeOptions:
        """Those that concern tokens and the network."""
        own = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("max_active_dims", "min_weight")
        }
        return EncodeOptions(**own)

    @classmethod
    def of(cls, options: SparseOptions | None, keywords: SparseKeywords) -> SparseOptions:
        """`options`, or the defaults, with the fields in `keywords` replaced; an unknown name is an error."""
        return with_keywords(options or cls(), keywords, "a sparse encoder")


class SparseKeywords(TypedDict, total=False):
    """The fields of `SparseOptions` as keywords."""

    prompt: str | None
    prompt_name: str | None
    max_active_dims: int | None
    min_weight: float | None
    precision: Precision | None
    max_length: int | None
    on_long: Literal["warn", "error", "truncate"]
    threads: int | None
    memory: int | str
    progress: bool


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Options = TypeVar("Options", bound=_Dataclass)


def with_keywords(options: Options, keywords: Mapping[str, Any], what: str) -> Options:
    """`options` with the fields in `keywords` replaced; an unknown name is an error about `what`."""
    names = [field.name for field in fields(options)]
    for name in keywords:
        if name not in names:
            hint = keyword_hint(name, names)
            raise InputError(f"unknown option {name!r} of {what}.{hint} Known: {', '.join(names)}")
    return replace(options, **keywords)
