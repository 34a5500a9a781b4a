"""Tokens to words: which pieces belong together, and how they read. Knows WordPiece, byte-level BPE, SentencePiece."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MARK = re.compile(r"\[[A-Z]+\]|</?\w+>|<\|.*\|>|\(offset\)")  # [CLS], <s>, <|end|>, (offset)
_STARTS = ("Ġ", "▁")  # what byte-level BPE and SentencePiece write for the space before a word
_INSIDE = "##"


@dataclass(frozen=True)
class Word:
    """A word and the places of its tokens."""

    text: str
    places: tuple[int, ...]


def words_of(tokens: Sequence[str]) -> list[Word]:
    """Tokens grouped into words, in order; marks and signs stand alone."""
    marked = any(token.startswith(_STARTS) for token in tokens)
    bytewise = any(token.startswith("Ġ") for token in tokens)
    groups: list[list[int]] = []
    open_word = False
    for place, token in enumerate(tokens):
        mark = _MARK.fullmatch(token) is not None
        if open_word and not mark and _continues(token, marked=marked, bytewise=bytewise):
            groups[-1].append(place)
        else:
            groups.append([place])
        open_word = not mark
    return [Word(_text([tokens[place] for place in group], bytewise), tuple(group)) for group in groups]


def _continues(token: str, *, marked: bool, bytewise: bool) -> bool:
    if token.startswith(_INSIDE):
        return len(token) > len(_INSIDE)
    if not marked or token.startswith(_STARTS):
        return False
    # Byte-level BPE writes a character beyond ASCII as several signs; none of them is punctuation.
    return any(sign.isalnum() or (bytewise and not sign.isascii()) for sign in token)


def _text(pieces: Sequence[str], bytewise: bool) -> str:
    if len(pieces) == 1 and _MARK.fullmatch(pieces[0]):
        return pieces[0]
    joined = "".join(piece if len(pieces) == 1 else piece.removeprefix(_INSIDE) for piece in pieces)
    if bytewise:
        return _from_bytes(joined).strip() or "␣"
    return joined.replace("▁", " ").strip() or "␣"


def _from_bytes(text: str) -> str:
    table = _byte_table()
    raw = bytes(table[sign] for sign in text if sign in table)
    return raw.decode("utf-8", "replace")


def _byte_table() -> dict[str, int]:
    """Character -> byte: printable bytes stand for themselves, the others follow from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(0x100 + place): b for place, b in enumerate(hidden)}
