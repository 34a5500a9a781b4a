"""A GGUF file of llama.cpp: its settings, its arrays where they stand in the file, and its tokenizer.

The header is read here and not by the `gguf` package: its reader takes seconds for a large vocabulary and runs almost
for ever where a damaged file gives a huge count. Here every count is compared with the bytes that are left. The
arithmetic of the small number formats is that of the package.

The tokenizer is made of the vocabulary: WordPiece, byte-level BPE, or SentencePiece pieces with scores. A file names
its rules and does not have them: `tokenizer.ggml.model` is the kind, and `tokenizer.ggml.pre` says where a byte-level
BPE splits a text first. Rules that are not known are refused. Special tokens are added as the file says, else as
llama.cpp does by default: a vector without its first or last token looks right and is wrong (llama.cpp issue 14280).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from gemel.errors import MissingExtra, ModelError

_VERSIONS = (2, 3)

# Types of settings by their number in a file, as NumPy names them.
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9

_MAX_DIMENSIONS = 4
_ALIGNMENT = 32  # where the file does not say


@dataclass(frozen=True)
class _List:
    """A setting with many values: what they are, and where they start."""

    kind: int
    count: int
    start: int


@dataclass(frozen=True)
class _Stored:
    """An array: its shape, the number of its type, and where it starts behind the header."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """Settings and arrays of one file."""

    def __init__(self, path: Path) -> None:
        _package()
        if not path.is_file():
            raise ModelError(f"no file {path}. Give an existing GGUF file")
        self.path = path
        try:
            self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
            header = _Header(self._bytes)
        except (OSError, ValueError, struct.error) as error:
            raise ModelError(
                f"{path} is not a complete GGUF file ({error}). Fetch or copy it again"
            ) from error
        self._header = header
        self._settings, self._arrays = header.settings, header.arrays
        alignment = self.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{path}: 'general.alignment' is {alignment!r:.60}, not a whole number over 0")
        self._data = -(-header.at // alignment) * alignment
        for name in self._arrays:
            self._span(name)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def names(self) -> list[str]:
        """Of the arrays, in the order of the file."""
        return list(self._arrays)

    @property
    def keys(self) -> list[str]:
        """Of the settings, in the order of the file."""
        return list(self._settings)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - any value of the file
        """A setting; the default where the file does not have it."""
        value = self._settings.get(key, default)
        if isinstance(value, _List):
            return self._decoded(key, self._header.values(value))
        return self._decoded(key, value) if isinstance(value, bytes) else value

    def texts(self, key: str) -> list[str]:
        """A setting that is a list of texts; empty where the file does not have it."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ModelError(f"{self.path}: {key!r} is not a list of texts. Fetch or copy the file again")
        return value

    def numbers(self, key: str) -> list[Any]:
        """A setting that is a list of numbers; empty where the file does not have it."""
        value = self.get(key, [])
        if not isinstance(value, list) or any(isinstance(each, str) for each in value):
            raise ModelError(f"{self.path}: {key!r} is not a list of numbers. Fetch or copy the file again")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A setting that is true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.path}: {key!r} is {value!r:.60}, not true or false")
        return value

    @property
    def architecture(self) -> str:
        return str(self.get("general.architecture"))

    def own(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - any value of the file
        """A setting of the architecture; without a default it must be there."""
        value = self.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ModelError(
                f"{self.path} does not say {self.architecture}.{key}: it is not complete, or not a model"
            )
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A setting of the architecture that is a whole number over 0."""
        value = self.own(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(
                f"{self.path}: {self.architecture}.{key} is {value!r:.60}, only one whole number over 0 is supported"
            )
        return value

    def number(self, key: str, default: float | None = None, *, over: float = 0.0) -> float:
        """A setting of the architecture that is a finite number over `over`."""
        value = self.own(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not over < value < math.inf:
            raise ModelError(
                f"{self.path}: {self.architecture}.{key} is {value!r:.60}, not a number over {over:g}"
            )
        return float(value)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name].shape

    def array(self, name: str) -> NDArray[np.float32]:
        """An array as float32, whatever it is stored as."""
        start, rows, row = self._span(name)
        kind = _package().kind(self._arrays[name].kind)
        stored = np.asarray(self._bytes[start : start + rows * row]).reshape(rows, row)
        try:
            with np.errstate(all="ignore"):  # a damaged scale is found as a number that is not finite
                numbers = _package().dequantize(stored, kind)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: {name!r} is stored as {kind.name}, which the installed gguf package does not read. "
                "Take a file of another quantization, such as Q8_0"
            ) from error
        return np.array(numbers, dtype=np.float32).reshape(self.shape(name))

    def _span(self, name: str) -> tuple[int, int, int]:
        """Where an array starts, its rows, and the bytes of a row; one that is not in the file is refused."""
        stored = self._arrays[name]
        sizes = _package().sizes(stored.kind)
        if sizes is None:
            raise ModelError(
                f"{self.path}: {name!r} has the type {stored.kind}, which the installed gguf package does not know. "
                "Install a newer one, or take a file of another quantization, such as Q8_0"
            )
        block, size = sizes
        width = stored.shape[-1] if stored.shape else 1
        rows, row, start = prod(stored.shape[:-1]), width // block * size, self._data + stored.offset
        if width % block or start + rows * row > len(self._bytes):
            raise ModelError(
                f"{self.path} is not a complete GGUF file (it ends before {name!r}, of shape {stored.shape}). "
                "Fetch or copy it again"
            )
        return start, rows, row

    def _decoded(self, key: str, value: Any) -> Any:  # noqa: ANN401 - any value of the file
        try:
            if isinstance(value, list):
                return [each.decode() if isinstance(each, bytes) else each for each in value]
            return value.decode()
        except ValueError as error:
            raise ModelError(
                f"{self.path}: {key!r} is not UTF-8 ({error}). Fetch or copy the file again"
            ) from error


class _Header:
    """Settings and arrays in front of the numbers; `at` is where it ends."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data.data
        self.at = 0
        self.settings: dict[str, Any] = {}
        self.arrays: dict[str, _Stored] = {}
        if bytes(self._taken(4)) != b"GGUF":
            raise ValueError("it does not start with GGUF")
        version = self._whole("<I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}, known are {_VERSIONS[0]} and {_VERSIONS[1]}")
        arrays, settings = self._whole("<Q"), self._whole("<Q")
        for _ in range(settings):
            key = self._name(self.settings)
            self.settings[key] = self._value(self._whole("<I"))
        for _ in range(arrays):
            name = self._name(self.arrays)
            self.arrays[name] = self._array()

    def values(self, listed: _List) -> list[Any]:
        """The values of a list; texts are bytes."""
        if listed.kind != _STRING:
            kind = np.dtype(_SCALARS[listed.kind])
            numbers: list[Any] = np.frombuffer(self._data, kind, listed.count, listed.start).tolist()
            return numbers
        self.at = listed.start
        return [bytes(self._text()) for _ in range(listed.count)]

    def _value(self, kind: int) -> Any:  # noqa: ANN401 - any value of the file
        if kind == _STRING:
            return bytes(self._text())
        if kind == _ARRAY:
            return self._list()
        size = np.dtype(_SCALARS[kind] if kind in _SCALARS else _unknown(kind)).itemsize
        return np.frombuffer(self._taken(size), _SCALARS[kind])[0].item()

    def _list(self) -> _List:
        kind, count = self._whole("<I"), self._whole("<Q")
        listed = _List(kind, count, self.at)
        if kind == _STRING:
            for _ in range(count):
                self._text()
        else:
            self._taken(count * np.dtype(_SCALARS[kind] if kind in _SCALARS else _unknown(kind)).itemsize)
        return listed

    def _array(self) -> _Stored:
        dimensions = self._whole("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"an array has {dimensions} dimensions")
        shape = tuple(reversed([self._whole("<Q") for _ in range(dimensions)]))
        return _Stored(shape, self._whole("<I"), self._whole("<Q"))

    def _name(self, taken: dict[str, Any]) -> str:
        name = bytes(self._text()).decode()
        if name in taken:
            raise ValueError(f"it has {name!r:.100} twice")
        return name

    def _text(self) -> memoryview:
        return self._taken(self._whole("<Q"))

    def _whole(self, form: str) -> int:
        number: int = struct.unpack_from(form, self._data, self.at)[0]
        self.at += struct.calcsize(form)
        return number

    def _taken(self, count: int) -> memoryview:
        if count > len(self._data) - self.at:
            raise ValueError("it ends within its header")
        self.at += count
        return self._data[self.at - count : self.at]


def _unknown(kind: int) -> str:
    raise ValueError(f"a setting has the type {kind}, which is not known")


class _Package:
    """What is taken from the gguf package."""

    def __init__(self) -> None:
        try:
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError as error:
            raise MissingExtra("reading a GGUF file", "gguf", "gguf") from error
        self.kind: Any = GGMLQuantizationType
        self.dequantize: Any = dequantize
        self._sizes = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}

    def sizes(self, kind: int) -> tuple[int, int] | None:
        """Numbers and bytes of a block of this type; None: an unknown type."""
        return self._sizes.get(kind)


@lru_cache(maxsize=1)
def _package() -> _Package:
    return _Package()


_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
"""Kinds of tokens; those of control and those that users defined stand in a text as they are."""

_SPACE = "\u2581"

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


@dataclass(frozen=True)
class _Split:
    """How a byte-level BPE prepares a text, as tokenizer.json of the original has it."""

    pattern: str | None = None
    """Where it splits a text; None: where GPT-2 does."""
    digits: bool = False
    """Each digit stands alone."""
    compose: bool = False
    """Letters and their accents become one character (NFC)."""
    whole: bool = False
    """A word that is in the vocabulary is one token, whatever the merges make of it."""
    first: bool = False
    """llama.cpp adds a first token unless the file says otherwise."""


_SPLITS = {
    "gpt-2": _Split(),
    "roberta-bpe": _Split(),
    "modern-bert": _Split(compose=True),
    "olmo": _Split(compose=True),
    "smollm": _Split(digits=True),
    "starcoder": _Split(digits=True),
    "qwen2": _Split(rf"{_SHORT}|{_WORDS}|\p{{N}}|{_REST}", compose=True),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3"),
        _Split(rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}", whole=True, first=True),
    ),
    "tekken": _Split(
        rf"{_CASES}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+", whole=True, first=True
    ),
}
"""By `tokenizer.ggml.pre`."""

_Ends = tuple[int | None, int | None]
"""Ids of the tokens before and after each text; None: there is none."""


def gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the file at `path`."""
    file = GgufFile(path)
    try:
        return _made(file)
    except ModelError:
        raise
    except BaseException as error:  # of the library: a plain Exception, or a panic, which is a BaseException
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(
            f"{path} has a vocabulary that is no tokenizer ({error}). Fetch or copy the file again"
        ) from error


def _made(file: GgufFile) -> Tokenizer:
    kind, tokens = file.get("tokenizer.ggml.model"), file.texts("tokenizer.ggml.tokens")
    if kind not in _KINDS:
        raise ModelError(
            f"{file.path} has a tokenizer of the kind {kind!r:.60}. Read from GGUF files: {', '.join(_KINDS)}. {_OTHER}"
        )
    if not tokens:
        raise ModelError(f"{file.path} has no tokens: it is not complete, or it is only a part of a model")
    types = file.numbers("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"{file.path} has {len(tokens)} tokens, but types for {len(types)}")
    tokenizer, ends = _KINDS[kind](file, tokens, types)
    added = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens([token for token, each in added if each in (_CONTROL, _UNKNOWN)])
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, each in added if each == _USER_DEFINED]
    )
    _add_ends(tokenizer, tokens, ends)
    return tokenizer


_OTHER = "Take the safetensors of the model, or convert it again with a current llama.cpp"


def _add_ends(tokenizer: Tokenizer, tokens: list[str], ends: _Ends) -> None:
    before, after = ([] if number is None else [tokens[number]] for number in ends)
    named = [(tokens[number], number) for number in ends if number is not None]
    if named:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], pair=[*before, "$A", *after, "$B", *after], special_tokens=named
        )


def _ends(
    file: GgufFile, tokens: list[str], *, before: bool, after: bool, ids: _Ends = (None, None)
) -> _Ends:
    """The ends of a text as the file says; the defaults are those of llama.cpp."""
    requested = {"bos": (before, ids[0]), "eos": (after, ids[1])}
    first, last = (
        _id(file, tokens, f"{name}_token_id", default)
        if file.flag(f"tokenizer.ggml.add_{name}_token", wanted)
        else None
        for name, (wanted, default) in requested.items()
    )
    return first, last


def _id(file: GgufFile, tokens: list[str], name: str, default: int | None) -> int:
    """The id of a special token that texts need."""
    number = file.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(tokens):
        raise ModelError(
            f"{file.path}: texts need the token of 'tokenizer.ggml.{name}', which is {number!r:.60}, and there are "
            f"{len(tokens)} tokens. {_OTHER}"
        )
    return number


def _wordpiece(file: GgufFile, tokens: list[str], types: list[int]) -> tuple[Tokenizer, _Ends]:
    """llama.cpp writes the start of a word as a mark, and the rest of one without the ## of BERT."""

    def original(token: str, kind: int) -> str:
        if kind == _CONTROL or (token.startswith("[") and token.endswith("]")):
            return token
        return token[1:] if token.startswith(_SPACE) else f"##{token}"

    words = [original(token, kind) for token, kind in zip(tokens, types, strict=True)]
    special = {word for word, token in zip(words, tokens, strict=True) if word == token}
    vocabulary = {word: number for number, word in enumerate(words)}
    cased = any(word != word.lower() for word in vocabulary.keys() - special)
    lowercase = file.flag("tokenizer.ggml.normalizer.lowercase", not cased)
    unknown = words[_id(file, words, "unknown_token_id", vocabulary.get("[UNK]"))]
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=file.flag("tokenizer.ggml.normalizer.strip_accents", lowercase)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(
        [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocabulary]
    )
    # Newer files have the first token as that of a beginning (bos), older ones as that of a class.
    first = file.get("tokenizer.ggml.bos_token_id", vocabulary.get("[CLS]"))
    separator = vocabulary.get("[SEP]")
    return tokenizer, (
        _id(file, tokens, "cls_token_id", first),
        _id(file, tokens, "seperator_token_id", separator),
    )


def _byte_bpe(file: GgufFile, tokens: list[str], types: list[int]) -> tuple[Tokenizer, _Ends]:
    name = file.get("tokenizer.ggml.pre")
    if name not in _SPLITS:
        raise ModelError(
            f"{file.path}: the pre-tokenizer {name!r:.60} is not supported, only {', '.join(_SPLITS)}. {_OTHER}"
        )
    split = _SPLITS[name]
    merges = []
    for merge in file.texts("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    model = BPE({token: number for number, token in enumerate(tokens)}, merges, ignore_merges=split.whole)
    tokenizer = Tokenizer(model)
    if split.compose:
        tokenizer.normalizer = normalizers.NFC()
    steps = [
        *([pre_tokenizers.Digits(individual_digits=True)] if split.digits else []),
        *([pre_tokenizers.Split(Regex(split.pattern), "isolated")] if split.pattern else []),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, _ends(file, tokens, before=split.first, after=False)


def _pieces(file: GgufFile, tokens: list[str], types: list[int]) -> tuple[Tokenizer, _Ends]:
    """BPE whose merges are the pairs of pieces that make a piece, those with the best score first."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges: list[tuple[float, str, str]] = []
    for token, score, kind in zip(tokens, _scores(file, tokens), types, strict=True):
        if kind in (_UNKNOWN, _CONTROL, _BYTE):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, left, right))
    merges.sort(key=lambda each: each[0])
    model = BPE(
        vocabulary,
        [(left, right) for _, left, right in merges],
        unk_token=tokens[_id(file, tokens, "unknown_token_id", 0)],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    first = [normalizers.Prepend(_SPACE)] if file.flag("tokenizer.ggml.add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", _SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer, _ends(file, tokens, before=True, after=False, ids=(1, 2))


def _unigram(file: GgufFile, tokens: list[str], types: list[int]) -> tuple[Tokenizer, _Ends]:
    """Pieces of which the most probable sequence is taken (T5, XLM-R)."""
    scores, unknown = _scores(file, tokens), _id(file, tokens, "unknown_token_id", 2)
    tokenizer = Tokenizer(Unigram(list(zip(tokens, scores, strict=True)), unk_id=unknown))
    steps: list[normalizers.Normalizer] = []
    if table := file.numbers("tokenizer.ggml.precompiled_charsmap"):
        steps.append(normalizers.Precompiled(bytes(each % 256 for each in table)))
    if file.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if file.flag("tokenizer.ggml.add_space_prefix", False) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    return tokenizer, _ends(file, tokens, before=False, after=True, ids=(None, 1))


def _scores(file: GgufFile, tokens: list[str]) -> list[float]:
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path} has {len(tokens)} tokens, but scores for {len(scores)}")
    return [float(score) for score in scores]


_Maker = Callable[[GgufFile, list[str], list[int]], tuple[Tokenizer, _Ends]]

_KINDS: Mapping[str, _Maker] = {"bert": _wordpiece, "gpt2": _byte_bpe, "llama": _pieces, "t5": _unigram}
"""By `tokenizer.ggml.model`."""
