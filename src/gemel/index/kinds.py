"""Kinds of vectors of an index besides the dense one: weights of words (sparse), and a vector of each token (late).

A table stores them as bytes, one value per passage, and knows no model. Here are the codec of these bytes, how a query
is compared with them, and the encoders: a model with the record that ties stored vectors to it, as `binding.py` has it
for the dense ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.canary import TEXTS
from gemel.errors import InputError, ModelError
from gemel.index.port import Header, KindHeader, KindName
from gemel.options import EncodeOptions, Precision
from gemel.types import ShownResult, Vectors
from gemel.vectors.inverted import InvertedFile
from gemel.vectors.maxsim import Codebook, MultiVectors, centroid_count, join_texts, make_centroids
from gemel.vectors.sparse import SparseRow, SparseVectors
from gemel.vectors.token_index import TokenIndex

Mode: TypeAlias = Literal["dense", "sparse", "late", "words", "hybrid"]
"""How an index is searched."""

LateForm: TypeAlias = Literal["float16", "int8", "2bit"]
"""How the vectors of tokens are stored. 2bit: residuals to the centroids of stored documents, which the header has, so
that only `migrate` makes it."""

KINDS: tuple[KindName, ...] = get_args(KindName)

# By name, as these modules are of a higher layer: an index is given such a model, or the name of one.
_LOADERS = {
    "sparse": ("gemel.texts.sparse_model", "load_sparse"),
    "late": ("gemel.texts.late_model", "load_late"),
}

_WHAT = {"sparse": "a sparse encoder (load_sparse)", "late": "a model for late interaction (load_late)"}

_OWN = {"sparse": "vocabulary", "late": "document_length"}  # an attribute that only models of this kind have

CLOSE = 1e-4
"""The largest difference of a weight or number that engines and processors explain."""

_FLOAT16 = 1e-3  # of a number of at most 1 that is stored with 16 bits

_INT8 = 1e-2

_TWO_BITS = 0.5  # a number near the border between two codes may get the other one

_CODEBOOK = ("centroids", "cutoffs", "weights")

_CODEBOOK_TOKENS = 16_000  # token vectors that a codebook is made from

_MOST_CENTROIDS = 256  # of a codebook; they are part of a header, which every version of a table has


class KindModel(Protocol):
    """What an index needs of a `SparseModel` or a `LateModel`."""

    precision: Precision
    checkpoint: Any

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    @property
    def weights_hash(self) -> str: ...

    def passages(self, texts: Sequence[str], *, tokens: int | None = None) -> list[list[str]]: ...

    def encode_query(self, texts: Sequence[str]) -> Any: ...  # noqa: ANN401 - SparseVectors or MultiVectors

    def encode_document(self, texts: Sequence[str], *, on_long: Literal["truncate"]) -> Any: ...  # noqa: ANN401


class Searched(Protocol):
    """Passages that can be searched by one kind of vectors."""

    @property
    def recall(self) -> float | None:
        """Measured, of searches that are not exact; None: all are."""
        ...

    def save(self, folder: Path) -> None: ...

    def search(
        self,
        query: Any,  # noqa: ANN401 - SparseRow or (tokens, dim)
        k: int,
        *,
        inside: NDArray[np.bool_] | None = None,
        exact: bool = ...,
    ) -> tuple[NDArray[np.int64], Vectors]: ...


# The codec.


def pack(
    kind: str, form: str, encoded: SparseVectors | MultiVectors, codebook: Codebook | None = None
) -> list[bytes]:
    """One value per text. `codebook`: of 2-bit residuals."""
    if isinstance(encoded, SparseVectors):
        return [_packed_terms(encoded.row(row)) for row in range(len(encoded))]
    stored = encoded.as_form(form, codebook=codebook)
    # Each vector is preceded by its scale and its centroid, where it has them.
    parts = [each for each in (stored.scales, stored.nearest) if each is not None]
    columns = [np.ascontiguousarray(each[:, None]).view(np.uint8) for each in parts]
    rows = np.ascontiguousarray(np.concatenate([*columns, stored.vectors.view(np.uint8)], axis=1))
    spans = zip(stored.offsets[:-1].tolist(), stored.offsets[1:].tolist(), strict=True)
    return [rows[start:end].tobytes() for start, end in spans]


def _packed_terms(row: SparseRow) -> bytes:
    return row[0].astype("<i4").tobytes() + row[1].astype("<f4").tobytes()


def terms_of(value: bytes) -> SparseRow:
    """The row of weights that was packed."""
    count = len(value) // 8
    return np.frombuffer(value, "<i4", count), np.frombuffer(value, "<f4", count, offset=4 * count)


def tokens_of(values: Sequence[bytes], header: KindHeader) -> MultiVectors:
    """The vectors of tokens that were packed."""
    width = _token_bytes(header)
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum([len(value) // width for value in values], out=offsets[1:])
    rows = np.frombuffer(b"".join(values), np.uint8).reshape(-1, width)
    if header.form == "2bit":
        scales, nearest = _column(rows, 0, "<f2"), _column(rows, 2, "<u2")
        codes = np.ascontiguousarray(rows[:, 4:])
        return MultiVectors(codes, offsets, (), scales, nearest, codebook_of(header))
    if header.form == "int8":
        return MultiVectors(
            np.ascontiguousarray(rows[:, 4:]).view(np.int8), offsets, (), _column(rows, 0, "<f4")
        )
    return MultiVectors(np.ascontiguousarray(rows).view("<f2").reshape(-1, header.dim), offsets, ())


def _column(rows: NDArray[np.uint8], start: int, kind: str) -> NDArray[Any]:
    """The numbers that are at the same bytes of each row."""
    return np.ascontiguousarray(rows[:, start : start + np.dtype(kind).itemsize]).view(kind).reshape(-1)


def _token_bytes(header: KindHeader) -> int:
    return {"int8": header.dim + 4, "2bit": -(-header.dim // 4) + 4}.get(header.form, 2 * header.dim)


def new_codebook(encoded: MultiVectors) -> Codebook:
    """Centroids and codes of 2-bit residuals, in the precision that a header has."""
    sample = encoded.rows(0, min(_CODEBOOK_TOKENS, len(encoded.vectors)))
    size = len(sample)
    while centroid_count(size) > _MOST_CENTROIDS:
        size //= 2
    _, centroids = make_centroids(join_texts([sample[:size]], (), sample.shape[1]))
    made = Codebook.of(sample, centroids)
    arrays = (getattr(made, name).astype(np.float16).astype(np.float32) for name in _CODEBOOK)
    return Codebook(*arrays)


def codebook_of(header: KindHeader) -> Codebook | None:
    """The recorded one; None: another form."""
    recorded = header.bound.get("codebook")
    if recorded is None:
        return None
    raw = (np.frombuffer(base64.b64decode(recorded[name]), "<f2") for name in _CODEBOOK)
    return Codebook(*(each.reshape(-1, header.dim).astype(np.float32) for each in raw))


def fault_of(kind: str, value: bytes, header: KindHeader) -> str | None:
    """Why a stored value cannot be right; None: it can."""
    if kind == "late":
        if len(value) % _token_bytes(header):
            return f"{len(value)} bytes are no vectors of {header.dim} numbers"
        try:
            tokens = tokens_of([value], header)
        except InputError as error:
            return str(error)
        return None if np.isfinite(tokens.of(0)).all() else "numbers that are not finite"
    if len(value) % 8:
        return f"{len(value)} bytes are no weights"
    indices, weights = terms_of(value)
    if len(indices) and (indices[0] < 0 or indices[-1] >= header.dim or (np.diff(indices) <= 0).any()):
        return f"columns that are not ascending from 0 to {header.dim - 1}"
    return None if np.isfinite(weights).all() else "weights that are not finite"


# Comparing a query with stored passages.


def compared(kind: str, header: KindHeader, values: Sequence[bytes]) -> Searched:
    """These passages in memory; every search compares all of them."""
    return TokenIndex(tokens_of(values, header)) if kind == "late" else _inverted(values, header)


def built_structure(
    kind: str, header: KindHeader, blocks: Iterable[Sequence[bytes]], folder: Path | None = None
) -> Searched:
    """What finds the best of many passages without comparing all.

    `folder`: for vectors of tokens while it is built, as they may be too many for memory; None: they stay there.
    """
    if kind == "late" and folder is not None:
        return TokenIndex.build(_tokens_in_files(blocks, header, folder))
    values = [value for block in blocks for value in block]
    return TokenIndex.build(tokens_of(values, header)) if kind == "late" else _inverted(values, header)


def _tokens_in_files(blocks: Iterable[Sequence[bytes]], header: KindHeader, folder: Path) -> MultiVectors:
    """`tokens_of` all blocks, with the arrays in files that are mapped into memory."""
    template = tokens_of((), header)
    names = [name for name in ("vectors", "scales", "nearest") if getattr(template, name) is not None]
    counts = [np.zeros(1, dtype=np.int64)]
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in names}
        for values in blocks:
            part = tokens_of(values, header)
            counts.append(np.diff(part.offsets))
            for name, file in files.items():
                file.write(getattr(part, name).tobytes())
    offsets = np.cumsum(np.concatenate(counts))
    arrays = {}
    for name in names:
        kind, shape = getattr(template, name).dtype, (int(offsets[-1]), *getattr(template, name).shape[1:])
        arrays[name] = np.memmap(folder / name, kind, "r", shape=shape) if shape[0] else np.empty(shape, kind)
    return MultiVectors(offsets=offsets, tokens=(), codebook=codebook_of(header), **arrays)


def loaded_structure(kind: str, folder: Path) -> Searched:
    """What was saved in a folder, mapped into memory."""
    return TokenIndex.load(folder) if kind == "late" else InvertedFile.load(folder)


def _inverted(values: Sequence[bytes], header: KindHeader) -> InvertedFile:
    rows = SparseVectors.of([terms_of(value) for value in values], ())
    return InvertedFile.build(rows.indptr, rows.indices, rows.values, header.dim)


# Models and their records.


class KindEncoder:
    """A loaded sparse or late model, and the form in which its vectors are stored."""

    def __init__(self, kind: KindName, model: KindModel, form: str, codebook: Codebook | None = None) -> None:
        self.kind, self.model, self.form, self.codebook = kind, model, form, codebook

    def encode_passages(self, texts: Sequence[str]) -> list[bytes]:
        """As they are stored; of an empty text nothing is."""
        filled = [text for text in texts if text]
        made = iter(self._encoded(filled) if filled else [])
        return [next(made) if text else b"" for text in texts]

    def _encoded(self, texts: Sequence[str]) -> list[bytes]:
        encoded = self.model.encode_document(texts, on_long="truncate")
        return pack(self.kind, self.form, encoded, self.codebook)

    def encode_queries(self, texts: Sequence[str]) -> list[Any]:
        """A `SparseRow` each, or (tokens, dim)."""
        encoded = self.model.encode_query(texts)
        each = encoded.row if isinstance(encoded, SparseVectors) else encoded.of
        return [each(position) for position in range(len(texts))]

    def header(self) -> KindHeader:
        """What an index records: encodes a few texts."""
        folder = _folder(self.kind, self.model)
        bound: dict[str, Any] = {
            "model": self.model.name,
            "folder": str(folder),
            "stamp": _stamp(folder),
            "weights": self.model.weights_hash,
            "precision": self.model.precision,
            "canary_texts": list(TEXTS),
            "canaries": [base64.b64encode(each).decode("ascii") for each in self._encoded(TEXTS)],
        }
        if self.kind == "late":
            bound["lengths"] = [self._length("query_length"), self._length("document_length")]
        if self.codebook is not None:
            arrays = {name: getattr(self.codebook, name).astype("<f2") for name in _CODEBOOK}
            bound["codebook"] = {
                name: base64.b64encode(each.tobytes()).decode("ascii") for name, each in arrays.items()
            }
        return KindHeader(self.model.dim, self.form, bound)

    def makes(self, header: KindHeader) -> bool:
        """Whether these are the vectors that an index recorded."""
        facts = (self.model.weights_hash, self.model.precision, self.form)
        return facts == (header.bound["weights"], header.bound["precision"], header.form)

    def _length(self, name: str) -> int | None:
        found: int | None = getattr(self.model, name)
        return found

    def canary_difference(self, header: KindHeader) -> float:
        """The largest difference of a number in the recorded texts, encoded again; inf: other words have weights."""
        recorded = [base64.b64decode(each) for each in header.bound["canaries"]]
        return difference(self.kind, header, recorded, self._encoded(header.bound["canary_texts"]))


def difference(kind: str, header: KindHeader, one: Sequence[bytes], other: Sequence[bytes]) -> float:
    """The largest difference of a number of the same passages; inf: another number of tokens."""
    if kind == "sparse":
        sides = [SparseVectors.of([terms_of(value) for value in values], ()) for values in (one, other)]
        return max(
            (_term_difference(sides[0].row(row), sides[1].row(row)) for row in range(len(one))), default=0.0
        )
    if list(map(len, one)) != list(map(len, other)):
        return float("inf")
    left, right = tokens_of(one, header), tokens_of(other, header)
    gaps = [np.abs(left.of(text) - right.of(text)).max(initial=0.0) for text in range(len(one))]
    return float(max(gaps, default=0.0))


def _term_difference(one: SparseRow, other: SparseRow) -> float:
    """A word that one of them lacks has the weight 0 there."""
    columns = np.union1d(one[0], other[0])
    sides = np.zeros((2, len(columns)), dtype=np.float32)
    for side, (indices, weights) in zip(sides, (one, other), strict=True):
        side[np.searchsorted(columns, indices)] = weights
    return float(np.abs(sides[0] - sides[1]).max(initial=0.0))


def tolerance(header: KindHeader) -> float:
    """The largest difference of a stored number that engines, processors and rounding explain."""
    rounding = {"float16": _FLOAT16, "int8": _INT8, "2bit": _TWO_BITS}.get(header.form, 0.0)
    scale = CLOSE if header.bound.get("precision") == "float32" else 100 * CLOSE
    return max(scale, rounding)


def new_kinds(
    given: Mapping[KindName, KindModel | str | Path],
    late_form: str | None,
    sample: Callable[[], Sequence[str]] | None = None,
) -> dict[KindName, KindEncoder]:
    """The encoders of a new index; a model is loaded if its name or folder is given.

    `sample`: gives some passages, from which the centroids of 2-bit residuals are made; None: there are none yet.
    """
    form = late_form or "float16"
    if form not in get_args(LateForm):
        raise InputError(f"late_form must be one of {', '.join(get_args(LateForm))}, got {form!r}")
    if late_form is not None and "late" not in given:
        raise InputError(
            f"late_form is {late_form!r}, but there is no model for late interaction. Give late="
        )
    if form == "2bit" and sample is None:
        raise InputError(
            "late_form '2bit' needs centroids of stored documents. Create the index with float16, add documents, then "
            "run index.migrate(late_form='2bit')"
        )
    out: dict[KindName, KindEncoder] = {}
    for kind in KINDS:
        if kind in given:
            source = given[kind]
            model = _loader(kind)(source) if isinstance(source, str | Path) else _checked(kind, source)
            book = None
            if kind == "late" and form == "2bit" and sample is not None:
                book = new_codebook(model.encode_document(sample(), on_long="truncate"))
            out[kind] = KindEncoder(kind, model, form if kind == "late" else "float32", book)
    return out


def check_whole_passages(options: EncodeOptions, kinds: Collection[str]) -> None:
    """Texts are divided into passages that every model reads whole; one that averages windows would not see them."""
    if kinds and options.on_long == "chunk":
        raise InputError(
            f"on_long='chunk' stores one vector per text, but {' and '.join(kinds)} vectors need passages that their "
            "models read whole. Use another on_long"
        )


def encoder_for(
    kind: KindName, header: KindHeader, given: KindModel | str | Path | None, location: str
) -> KindEncoder:
    """The encoder of an existing index; a ModelError if the model is not the recorded one, or cannot be loaded."""
    bound = header.bound
    name = str(bound["model"])
    if given is None:
        source = bound["folder"] if Path(bound["folder"]).is_dir() else name
        try:
            model = _loaded_again(kind, header, source)
        except (ModelError, InputError) as error:
            raise ModelError(
                f"the {kind} vectors of the index {location} were made by {name!r}, which cannot be loaded here: "
                f"{error} Give the model: open_index({location!r}, {kind}=...)"
            ) from error
    elif isinstance(given, str | Path):
        model = _loaded_again(kind, header, given)
    else:
        model = _checked(kind, given)
    facts = {"weights": model.weights_hash, "precision": model.precision}
    different = [
        f"{fact}: {str(bound[fact])[:12]!r} in the index, {str(now)[:12]!r} now"
        for fact, now in facts.items()
        if bound[fact] != now
    ]
    if different:
        raise ModelError(
            f"the {kind} vectors of the index {location} were made by {name!r}, but it was opened with {model.name!r}: "
            f"{'; '.join(different)}. Open it without {kind}=, or encode it again with index.migrate({kind}=...)"
        )
    return KindEncoder(kind, model, header.form, codebook_of(header))


def is_recorded(header: KindHeader, given: KindModel | str | Path | None) -> bool:
    """A name or folder that is the recorded one, so that it need not be loaded to be checked."""
    bound = header.bound
    return given is None or (
        isinstance(given, str | Path)
        and (str(given) == bound["model"] or str(Path(given).resolve()) == bound["folder"])
    )


def _loaded_again(kind: KindName, header: KindHeader, source: str | Path) -> KindModel:
    """In the precision of the index, and with its lengths if these are not the checkpoint's own."""
    load, settings = _loader(kind), {"precision": header.bound["precision"]}
    model: KindModel = load(source, **settings)
    lengths = header.bound.get("lengths")
    if lengths not in (None, [getattr(model, name, None) for name in ("query_length", "document_length")]):
        model = load(source, query_length=lengths[0], document_length=lengths[1], **settings)
    if header.bound.get("stamp") and header.bound["stamp"] == _stamp(_folder(kind, model)):
        # The files are those that were hashed when the index was made; hashing them takes as long as loading them.
        vars(model)["weights_hash"] = header.bound["weights"]
    return model


def _folder(kind: str, model: KindModel) -> Path:
    checkpoint = model.checkpoint
    inner = checkpoint.document.checkpoint if kind == "sparse" else checkpoint.encoder
    return Path(inner.folder.resolve())


def _stamp(folder: Path) -> str:
    """A hash of path, size, times and inode of each file of a model; "": they cannot be listed."""
    try:
        files = [
            (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and ".gemel" not in path.parts
            for stat in [path.stat()]
        ]
    except OSError:
        return ""
    return hashlib.sha256(json.dumps(files).encode("ascii")).hexdigest()[:32]


def _loader(kind: KindName) -> Callable[..., KindModel]:
    module, name = _LOADERS[kind]
    load: Callable[..., KindModel] = getattr(import_module(module), name)
    return load


def _checked(kind: KindName, model: KindModel) -> KindModel:
    if not hasattr(model, _OWN[kind]) or not hasattr(model, "encode_document"):
        raise InputError(f"{kind}= takes {_WHAT[kind]} or its name, got {type(model).__name__}")
    return model


# Why a passage has its score.


@dataclass(frozen=True)
class IndexExplanation(ShownResult):
    """Why a document is found: its best passage, compared with the query by each kind of vectors of the index."""

    id: str
    part: int
    """Which passage of the document it is, from 0."""
    text: str
    cosine: float | None
    """Of the dense vectors; None: the index has none."""
    sparse: Any | None
    """A `SparseExplanation`: the words of both with their contributions; None: the index has no weights of words."""
    late: Any | None
    """A `LateExplanation`: the best token for each of the query; None: the index has no vectors of tokens."""


# Modes of search.


@dataclass(frozen=True)
class Rankings:
    """What one search looks at."""

    mode: Mode
    weights: Mapping[str, float]
    """Of each ranking that is fused, none of them 0; one entry: that ranking alone."""


def kinds_in(header: Header) -> tuple[Mode, ...]:
    """The kinds of vectors of an index, the dense one first."""
    dense: tuple[Mode, ...] = ("dense",) if header.dim else ()
    return (*dense, *(kind for kind in KINDS if kind in header.kinds))


def default_mode(header: Header) -> Mode:
    """How an index is searched unless it or a search says otherwise: by all kinds of vectors that it has."""
    there = kinds_in(header)
    return there[0] if len(there) == 1 else "hybrid"


def recorded_mode(header: Header) -> Mode:
    """How an index is searched unless a search says otherwise."""
    return default_mode(header) if header.mode is None else check_mode(header.mode, header)


def modes_of(header: Header) -> tuple[Mode, ...]:
    """How an index with this header can be searched."""
    return (*kinds_in(header), "words", "hybrid")


def check_mode(mode: object, header: Header) -> Mode:
    """A mode that an index with this header can be searched in."""
    for possible in modes_of(header):
        if mode == possible:
            return possible
    why = f"the index has no {mode} vectors" if mode in get_args(Mode) else f"mode {mode!r} is unknown"
    raise InputError(f"{why}. It can be searched by: {', '.join(modes_of(header))}")


def rankings_for(mode: Mode, weights: Mapping[str, float] | None, header: Header) -> Rankings:
    """The rankings of a search in this mode; `weights` changes those of hybrid search."""
    if mode != "hybrid":
        if weights is not None:
            raise InputError(
                f"weights are for mode='hybrid', which fuses several rankings; got mode={mode!r}"
            )
        return Rankings(mode, {mode: 1.0})
    there: dict[str, float] = dict.fromkeys(kinds_in(header), 1.0)
    if header.dim and header.kinds and header.bound.get("model", "") is None:
        there["dense"] = 0.0  # no model makes the dense vector of a text
    there["words"] = 0.0 if "sparse" in header.kinds else 1.0
    for name, value in (weights or {}).items():
        if name not in there:
            raise InputError(f"weights names {name!r}. The index has: {', '.join(there)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise InputError(f"the weight of {name!r} is a number of at least 0, got {value!r}")
        there[name] = float(value)
    used = {name: value for name, value in there.items() if value}
    if not used:
        raise InputError("all weights are 0, so there is nothing to search by. Give one that is greater")
    return Rankings(mode, used)
