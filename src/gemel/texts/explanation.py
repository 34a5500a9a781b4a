"""Why two texts have their score: `explain` splits the cosine into a table of token pairs that sums to it.

The vector of a text is a sum: one part for each token, and one for the biases of dense layers. Tokens (of WordPiece,
byte-level BPE or SentencePiece) are grouped into words, and an `Explanation` can be drawn as one HTML page.

What a cosine cannot tell is found by `differences`: the vectors of "The ticket costs twelve euros" and "The ticket
costs twenty euros" are nearly equal. It compares words: it costs nothing, knows English only, misses what is said in
other words ("refused" for "not accepted") and marks some pairs that do mean the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.head import Flow, LayerNorm
from gemel.encoder.pooling import POOLINGS, pool
from gemel.errors import InputError
from gemel.files.markup import STYLE, Markup, element, page
from gemel.model import Model
from gemel.options import EncodeKeywords, EncodeOptions
from gemel.types import ShownResult, TokenEmbeddings
from gemel.vectors.bm25 import STOP_WORDS

__all__ = ["Explanation", "explain"]

HeatMap: TypeAlias = tuple[str, tuple[str, ...], tuple[str, ...], NDArray[np.float64]]
"""Title, names of rows, names of columns, values."""

OFFSET = "(offset)"

_SPECIAL = re.compile(r"\[[A-Z]+\]|</?\w+>|<\|.*\|>|\(offset\)")  # [CLS], <s>, <|end|>, (offset)

_WORD_START = ("Ġ", "▁")  # what byte-level BPE and SentencePiece write for the space before a word

_INSIDE = "##"  # what WordPiece writes before a piece inside a word

_STRONGEST = 0.7  # opacity of the color in the strongest cell: the number in it must stay readable


def explain(
    model: Model,
    left: str,
    right: str,
    options: EncodeOptions | None = None,
    **changes: Unpack[EncodeKeywords],
) -> Explanation:
    """The cosine of two texts, split exactly into what each pair of tokens adds.

    Works if a vector is a sum over tokens: mean, mean-sqrt-len, weighted-mean, cls or last pooling, also concatenated,
    with dense layers without an activation (whitening). A bias appears as a token "(offset)". Other models are refused.
    Keywords are the fields of `EncodeOptions`, as for `encode`.
    """
    one, other = parts_of(model, [left, right], options, **changes)
    lengths = np.linalg.norm(one.vectors.sum(axis=0)) * np.linalg.norm(other.vectors.sum(axis=0))
    table = one.vectors @ other.vectors.T / (lengths or 1.0)
    return Explanation(left, right, one.tokens, other.tokens, table, float(table.sum()))


@dataclass(frozen=True, eq=False)
class Explanation(ShownResult):
    """What each token of `left` and each of `right` add to their cosine together."""

    left: str
    right: str
    left_tokens: tuple[str, ...]
    right_tokens: tuple[str, ...]
    table: NDArray[np.float64]
    """(left tokens, right tokens); negative where a pair of tokens lowers the score."""
    score: float
    """The cosine: the sum of the table."""

    @property
    def tokens(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the rows and of the columns."""
        return self.left_tokens, self.right_tokens

    def words(self) -> Explanation:
        """The same table by words: the pieces of a word are summed."""
        rows, columns = words_of(self.left_tokens), words_of(self.right_tokens)
        table = _added(_added(self.table, rows).T, columns).T
        return replace(self, left_tokens=_texts(rows), right_tokens=_texts(columns), table=table)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        """The pairs of words that add most to the score."""
        words = self.words()
        for cell in np.argsort(-words.table, axis=None, kind="stable"):
            row, column = divmod(int(cell), len(words.right_tokens))
            yield {
                "left": words.left_tokens[row],
                "right": words.right_tokens[column],
                "adds": words.table[row, column],
            }

    def to_json(self) -> dict[str, Any]:
        """Tokens, words, both tables and the score, as plain lists."""
        words = self.words()
        return {
            "left": self.left,
            "right": self.right,
            "score": self.score,
            "left_tokens": list(self.left_tokens),
            "right_tokens": list(self.right_tokens),
            "table": self.table.tolist(),
            "left_words": list(words.left_tokens),
            "right_words": list(words.right_tokens),
            "word_table": words.table.tolist(),
        }

    def to_html(self) -> str:
        """A self-contained page: a heat map of the words, and one of the tokens below."""
        words = self.words()
        maps = [("Words", *words.tokens, words.table)]
        if words.tokens != self.tokens:
            maps.append(("Tokens", *self.tokens, self.table))
        return _page(self.left, self.right, self.score, maps)


def _texts(words: list[Word]) -> tuple[str, ...]:
    return tuple(word.text for word in words)


def _added(table: NDArray[np.float64], words: list[Word]) -> NDArray[np.float64]:
    """The rows of each word summed."""
    out = np.empty((len(words), table.shape[1]))
    for row, word in zip(out, words, strict=True):
        row[:] = table[list(word.positions)].sum(axis=0)
    return out


@dataclass(frozen=True, eq=False)
class Parts:
    """A vector as a sum of the rows of `vectors`, before it is scaled to length 1."""

    tokens: tuple[str, ...]
    vectors: NDArray[np.float64]
    """(t, dim)"""


def parts_of(
    model: Model,
    texts: Sequence[str],
    options: EncodeOptions | None = None,
    **changes: Unpack[EncodeKeywords],
) -> list[Parts]:
    """The parts of the vector of each text; raises if it is no sum over tokens."""
    _check_sums(model)
    settings = EncodeOptions.of(options, changes)
    if settings.dim is not None and settings.dim > model.dim:
        raise InputError(f"dim must be at most {model.dim}, that of the model, got {settings.dim}")
    dim = settings.dim or model.checkpoint.truncate_dim
    return [_parts(model, embeddings, dim) for embeddings in model.tokens(texts, settings)]


def _check_sums(model: Model) -> None:
    refused = [mode for mode in model.checkpoint.pooling.modes if not POOLINGS[mode].linear]
    if refused:
        raise InputError(
            f"{model.name} pools by {refused[0]!r}: its vector is not a sum over tokens, so a score cannot be split. "
            f"Poolings that can: {', '.join(name for name in POOLINGS if POOLINGS[name].linear)}"
        )
    for layer in model.checkpoint.dense:
        if layer.activation != "identity":
            kinds = {Flow: "a flow", LayerNorm: "a layer norm"}
            what = kinds.get(type(layer), f"a dense layer with {layer.activation}")
            raise InputError(
                f"{model.name} has {what} after pooling: its vector is not a sum over tokens, so a score cannot be "
                "split"
            )


def _parts(model: Model, embeddings: TokenEmbeddings, dim: int | None) -> Parts:
    modes, count = model.checkpoint.pooling.modes, len(embeddings.tokens)
    hidden = embeddings.vectors.astype(np.float64)
    # Pooling the unit vectors gives the weights of the tokens.
    unit = np.eye(count, dtype=np.float32)[None]
    weights = [pool(unit, (mode,), embeddings.skipped)[0].astype(np.float64) for mode in modes]
    vectors = np.concatenate([weight[:, None] * hidden for weight in weights], axis=1)
    offset = np.zeros(vectors.shape[1])
    for layer in model.checkpoint.dense:
        matrix = layer.weight.astype(np.float64).T
        vectors, offset = vectors @ matrix, offset @ matrix
        if layer.bias is not None:
            offset = offset + layer.bias
    tokens = embeddings.tokens
    if offset.any():
        tokens, vectors = (*tokens, OFFSET), np.vstack([vectors, offset])
    return Parts(tokens, vectors[:, :dim])


@dataclass(frozen=True)
class Word:
    """A word and the positions of its tokens."""

    text: str
    positions: tuple[int, ...]


def words_of(tokens: Sequence[str]) -> list[Word]:
    """Tokens grouped into words, in order; special tokens and punctuation are words of their own."""
    starts_marked = any(token.startswith(_WORD_START) for token in tokens)
    bytewise = any(token.startswith("Ġ") for token in tokens)
    groups: list[list[int]] = []
    open_word = False
    for position, token in enumerate(tokens):
        special = _SPECIAL.fullmatch(token) is not None
        if open_word and not special and _continues(token, starts_marked=starts_marked, bytewise=bytewise):
            groups[-1].append(position)
        else:
            groups.append([position])
        open_word = not special
    return [Word(_text([tokens[position] for position in group], bytewise), tuple(group)) for group in groups]


def _continues(token: str, *, starts_marked: bool, bytewise: bool) -> bool:
    if token.startswith(_INSIDE):
        return len(token) > len(_INSIDE)
    if not starts_marked or token.startswith(_WORD_START):
        return False
    # Byte-level BPE writes a character beyond ASCII as several characters; none of them is punctuation.
    return any(each.isalnum() or (bytewise and not each.isascii()) for each in token)


def _text(pieces: Sequence[str], bytewise: bool) -> str:
    if len(pieces) == 1 and _SPECIAL.fullmatch(pieces[0]):
        return pieces[0]
    joined = "".join(piece if len(pieces) == 1 else piece.removeprefix(_INSIDE) for piece in pieces)
    if bytewise:
        return _from_bytes(joined).strip() or "␣"
    return joined.replace("▁", " ").strip() or "␣"


def _from_bytes(text: str) -> str:
    table = _byte_table()
    raw = bytes(table[each] for each in text if each in table)
    return raw.decode("utf-8", "replace")


def _byte_table() -> dict[str, int]:
    """Character -> byte: printable bytes are themselves, the others follow from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(0x100 + number): b for number, b in enumerate(hidden)}


_CSS = """
.heat td { padding: .25em .45em; border: 1px solid var(--paper); min-width: 3.4em; }
.heat .for { background: color-mix(in srgb, var(--c0) var(--a), var(--paper)); }
.heat .against { background: color-mix(in srgb, var(--c1) var(--a), var(--paper)); }
.heat .sum { color: var(--soft); background: var(--panel); }
.heat thead th { min-width: 0; }
.heat th:first-child { min-width: 0; }
.key { display: inline-block; width: 1em; height: 1em; vertical-align: -.15em; margin: 0 .4em 0 0; }
.key ~ .key { margin-left: 1.2em; }
.key.for { background: var(--c0); } .key.against { background: var(--c1); }
"""


def _page(left: str, right: str, score: float, maps: Sequence[HeatMap]) -> str:
    terms = (element("dt", "rows"), element("dd", left), element("dt", "columns"), element("dd", right))
    key = (
        element("span", class_="key for"),
        "raises the score",
        element("span", class_="key against"),
        "lowers the score",
    )
    return page(
        f"Why {score:.3f}: {left} | {right}",
        STYLE + _CSS,
        element("h1", f"Cosine {score:.3f}"),
        element("dl", *terms),
        element(
            "p", "Each cell is what a pair adds to the cosine; all cells together sum to it.", class_="soft"
        ),
        element("p", *key, class_="soft"),
        *(_section(*each) for each in maps),
    )


def _section(
    title: str, rows: tuple[str, ...], columns: tuple[str, ...], values: NDArray[np.float64]
) -> Markup:
    most = float(np.abs(values).max(initial=0.0)) or 1.0
    head = element("tr", element("th", ""), *(element("th", name) for name in columns), element("th", "sum"))
    lines = [
        element(
            "tr",
            element("th", name),
            *(_cell(float(value), most) for value in line),
            element("td", short(float(line.sum())), class_="sum"),
        )
        for name, line in zip(rows, values, strict=True)
    ]
    sums = element(
        "tr",
        element("th", "sum"),
        *(element("td", short(float(value)), class_="sum") for value in values.sum(axis=0)),
        element("td", short(float(values.sum())), class_="sum"),
    )
    table = element("table", element("thead", head), element("tbody", *lines, sums), class_="heat")
    return element("section", element("h2", title), element("div", table, class_="scroll"))


def _cell(value: float, most: float) -> Markup:
    kind = "for" if value >= 0 else "against"
    part = f"--a: {100 * _STRONGEST * abs(value) / most:.0f}%"
    return element("td", short(value), class_=kind, style=part)


def short(value: float) -> str:
    """Three decimals without the leading zero: .013, -.002, 1.000."""
    text = f"{value:.3f}"
    text = "0.000" if text == "-0.000" else text
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


Difference = Literal["number", "negation", "swapped roles"]

_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)*")

_NEGATIONS = frozenset(
    ("not", "no", "never", "none", "nobody", "nothing", "nowhere", "neither", "nor", "without", "cannot")
)

# fmt: off
_NUMBERS = {  # without "one", which is mostly a pronoun
    "zero": 0, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17,
    "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70,
    "eighty": 80, "ninety": 90, "hundred": 100, "thousand": 1000, "million": 1_000_000,
}
# fmt: on

_LONGEST = 60  # words among which swapped roles are looked for

_SAME_WORDS = 0.6  # share of equal content words from which a negation in one text is marked


def differences(left: str, right: str) -> tuple[Difference, ...]:
    """What sets two similar texts apart, as far as their words show it; empty: nothing was found.

    number: both have numbers, and other ones. negation: nearly the same words, negated in one of them. swapped roles:
    the same words, two of them exchanged around a third, as in "the dog chased the cat".
    """
    one, other = _tokens(left), _tokens(right)
    checks: dict[Difference, bool] = {
        "number": _numbers_differ(one, other),
        "negation": _negation_differs(one, other),
        "swapped roles": _roles_swapped(one, other),
    }
    return tuple(name for name, differs in checks.items() if differs)


def _tokens(text: str) -> list[str]:
    return [token.replace("’", "'") for token in _TOKEN.findall(text.casefold())]


def _numbers_differ(one: Sequence[str], other: Sequence[str]) -> bool:
    left, right = _numbers(one), _numbers(other)
    return bool(left) and bool(right) and left != right


def _numbers(tokens: Sequence[str]) -> Counter[str]:
    """The numbers of a text, "12" and "twelve" alike; "twenty five" and "25" count as different."""
    numbers = (str(_NUMBERS.get(token, token)) for token in tokens)
    return Counter(number.replace(",", "") for number in numbers if number[0].isdigit())


def _negation_differs(one: Sequence[str], other: Sequence[str]) -> bool:
    if _negations(one) % 2 == _negations(other) % 2:
        return False
    left, right = _content(one), _content(other)
    return len(left & right) >= _SAME_WORDS * len(left | right)


def _negations(tokens: Sequence[str]) -> int:
    return sum(token in _NEGATIONS or token.endswith("n't") for token in tokens)


def _content(tokens: Sequence[str]) -> set[str]:
    return {
        token
        for token in tokens
        if token not in STOP_WORDS and token not in _NEGATIONS and not token.endswith("n't")
    }


def _roles_swapped(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the texts are A X B and B X A within equal words; X is more than "and" or "or", which swap freely."""
    if one == other or Counter(one) != Counter(other):
        return False
    begin = next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    end = next(at for at, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=True)) if a != b)
    left, right = one[begin : len(one) - end], other[begin : len(other) - end]
    count = len(left)
    if count > _LONGEST:
        return False
    for first in range(1, count - 1):  # words of A
        for second in range(1, count - first):  # words of B
            middle = left[first : count - second]
            swapped = [*left[count - second :], *middle, *left[:first]] == right
            if swapped and not set(middle) <= {"and", "or", "the", "a", "an"}:
                return True
    return False
