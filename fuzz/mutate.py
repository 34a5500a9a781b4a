"""Mutation by the structure of an input: values of a JSON tree, lines, words, parts of an HTTP request, bytes.

Random bytes seldom pass the first parser. A changed value in a valid JSON file reaches the code after it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from fuzz.target import Kind

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63, -(2**63) - 1, 10**30,
    0.0, -0.0, 0.5, 1e-320, 1e308, float("inf"), float("nan"), "", " ", "\0", "a", "id", "text", "é", "\ud800",
    "\U0010ffff", "../..", "/etc/passwd", "x" * 5000, "1e999", "true", "null", [], {}, [[]], [None], {"": None},
    ["a", "b"], [0, 0], [-1], [2**40, 2**40], {"a": 1},
)  # fmt: skip
WORDS: tuple[bytes, ...] = (
    b"", b"\0", b"\n", b"\r\n", b"\t", b",", b'"', b"'", b"''", b"\\", b"{", b"}", b"[", b"]", b"(", b")", b":", b"#",
    b"-", b"=", b"%s", b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x8f\xbf\xbf", b"\xe2\x80\xa8",
    b"0", b"-1", b"1e999", b"nan", b"inf", b"9223372036854775808", b"99999999999999999999999999", b"true", b"null",
    b" and ", b" or ", b" not ", b" in (", b" is null", b" between ", b" contains ", b" like ",
    b"!=", b"<=", b">=", b"<>",
)  # fmt: skip
LARGEST = 1 << 16


def mutate(data: bytes, kind: Kind, rng: random.Random) -> bytes:
    """A changed copy; the same generator gives the same bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        changes = _BY_KIND[kind]
        data = rng.choice(changes if rng.random() < 0.75 else _BY_KIND["bytes"])(data, rng)
    return data[:LARGEST]


def _json(data: bytes, rng: random.Random) -> bytes:
    try:
        return _changed_tree([json.loads(data)], rng)
    except (ValueError, RecursionError, OverflowError):  # not JSON, too deep, numbers of thousands of digits
        return _bytes(data, rng)


def _changed_tree(holder: list[Any], rng: random.Random) -> bytes:
    positions = list(_positions(holder))
    where, key = rng.choice(positions)
    change = rng.randrange(7)
    if change == 0 and len(positions) > 1:
        where, key = rng.choice(positions[1:])
        del where[key]
    elif change == 1:
        other, name = rng.choice(positions)
        where[key] = json.loads(json.dumps(other[name]))
    elif change == 2 and isinstance(where, dict):
        where[rng.choice(("", "a", "type", "path", "id", "__metadata__", str(key) + "x"))] = where[key]
    elif change == 3 and isinstance(where[key], int | float) and not isinstance(where[key], bool):
        where[key] = rng.choice(
            (where[key] + 1, where[key] - 1, where[key] * 2, -where[key], float(where[key]))
        )
    elif change == 4 and isinstance(where[key], str):
        where[key] = _bytes(where[key].encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    elif change == 5:
        where[key] = [where[key]] * rng.choice((1, 2, 300))
    else:
        where[key] = rng.choice(ODD)
    return json.dumps(holder[0]).encode("utf-8", "surrogatepass")


def _positions(node: list[Any]) -> list[tuple[Any, Any]]:
    """(container, key) of every value, at most some thousands."""
    result: list[tuple[Any, Any]] = []
    waiting: list[Any] = [node]
    while waiting and len(result) < 5000:
        current = waiting.pop()
        for key in current if isinstance(current, dict) else range(len(current)):
            result.append((current, key))
            if isinstance(current[key], dict | list):
                waiting.append(current[key])
    return result


def _lines(data: bytes, rng: random.Random) -> bytes:
    """One line changed, as JSON if it is JSON; or lines deleted, doubled, exchanged."""
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    change = rng.randrange(5)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(other, lines[at])
    elif change == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = (_json if lines[at][:1] in b"{[" and lines[at] else _word)(lines[at], rng)
    return b"\n".join(lines)


def _word(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    until = at + rng.choice((0, 0, 1, 2, 8))
    return data[:at] + rng.choice(WORDS) * rng.choice((1, 1, 1, 2, 50)) + data[until:]


def _bytes(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return rng.choice(WORDS)
    at, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 4, 8, 32))
    change = rng.randrange(7)
    if change == 0:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if change == 1:
        return data[:at] + rng.randbytes(length) + data[at + length :]
    if change == 2:
        return data[:at]
    if change == 3:
        return data[:at] + data[at + length :]
    if change == 4:
        return data[:at] + data[at : at + length] * rng.choice((2, 3, 100)) + data[at + length :]
    if change == 5:
        number = rng.choice((0, 1, -1, 2**7, 2**15, 2**31, 2**63)) + rng.choice((-1, 0, 1))
        width = rng.choice((1, 2, 4, 8))
        return data[:at] + (number % 2 ** (8 * width)).to_bytes(width, "little") + data[at + width :]
    return _word(data, rng)


def _http(data: bytes, rng: random.Random) -> bytes:
    """Mostly the body, as JSON; else a word of the first line or of the headers."""
    head, mark, body = data.partition(b"\n\n")
    if mark and rng.random() < 0.75:
        return head + mark + (_json if rng.random() < 0.8 else _bytes)(body, rng)
    return (_lines if rng.random() < 0.5 else _word)(head, rng) + mark + body


_BY_KIND: dict[Kind, tuple[Callable[[bytes, random.Random], bytes], ...]] = {
    "json": (_json,),
    "lines": (_lines, _lines, _word),
    "text": (_word,),
    "bytes": (_bytes,),
    "http": (_http,),
}
