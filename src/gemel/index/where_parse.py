"""Conditions as people and programs write them, to a checked tree. Strings are read here, dictionaries beside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from gemel.errors import InputError
from gemel.index.port import FieldType
from gemel.index.where import KEYWORDS, NAME, Both, Condition, Either, Literals, Not, chain
from gemel.index.where_check import (
    DEEPEST,
    LONGEST,
    check_size,
    check_tree,
    compare,
    contains,
    is_null,
    one_of,
)
from gemel.index.where_dict import from_dict


def parse_where(
    where: str | Mapping[str, Any] | Condition | None, fields: Mapping[str, FieldType]
) -> Condition | None:
    """The condition as a tree that asks only for what `fields` (and `id`) have; None: no condition.

    "lang = 'en' and year >= 2020", or {"lang": "en", "year": {">=": 2020}}, or a tree.
    """
    if where is None:
        return None
    if isinstance(where, str):
        return check_size(_Parser(where, fields).parse())
    if isinstance(where, Mapping):
        return check_size(from_dict(where, fields))
    if isinstance(where, get_args(Condition)):
        return check_size(check_tree(where, fields))
    raise InputError(f"where is a string, a dictionary or a condition, not {type(where).__name__}")


_TOKEN = re.compile(
    rf"""
    (?P<text>'[^']*(?:''[^']*)*')
  | (?P<quoted>"[^"]*(?:""[^"]*)*")
  | (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
  | (?P<sign><=|>=|<>|!=|<|>|=|\(|\)|,)
  | (?P<name>{NAME.pattern})
    """,
    re.VERBOSE,
)
_SPACES = re.compile(r"\s*")
_OPERATORS = {"=": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True)
class _Token:
    kind: str
    """text, quoted, number, sign, name, word (of the language), or end."""
    shown: str
    at: int

    def is_a(self, *words: str) -> bool:
        return self.kind in ("word", "sign") and self.shown.lower() in words


class _Parser:
    """One string, read once from left to right."""

    def __init__(self, source: str, fields: Mapping[str, FieldType]) -> None:
        if len(source) > LONGEST:
            raise InputError(f"where has {len(source):,} characters, at most {LONGEST:,} are allowed")
        if not source.strip():
            raise InputError("where is empty. Write a condition, or leave it out")
        self._source, self._fields = source, fields
        self._tokens = self._read()
        self._next = 0
        self._depth = 0

    def parse(self) -> Condition:
        found = self._either()
        if self._token.is_a(")"):
            raise self._error("this bracket was never opened")
        if self._token.kind != "end":
            raise self._error(f"expected 'and', 'or' or the end, found {self._found()}")
        return found

    # Words and signs.

    def _read(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while True:
            at = _SPACES.match(self._source, at).end()  # type: ignore[union-attr]  # it matches nothing, too
            if at == len(self._source):
                return [*tokens, _Token("end", "", at)]
            match = _TOKEN.match(self._source, at)
            if match is None:
                raise self._error(self._strange(at), at)
            kind = match.lastgroup or ""
            if kind == "name" and match[0].lower() in KEYWORDS:
                kind = "word"
            tokens.append(_Token(kind, match[0], at))
            at = match.end()

    def _strange(self, at: int) -> str:
        start = self._source[at]
        if start in "'\"":
            return f"the quote {start} is never closed"
        if start.isdigit() or start in "+-.":
            return "this is no number"
        return f"the character {start!r} has no meaning here"

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _accept(self, *words: str) -> _Token | None:
        return self._take() if self._token.is_a(*words) else None

    def _expect(self, word: str) -> None:
        if self._accept(word) is None:
            raise self._error(f"expected {word!r}, found {self._found()}")

    # The grammar: or, and, not, brackets, one comparison.

    def _either(self) -> Condition:
        parts = [self._both()]
        while self._accept("or"):
            parts.append(self._both())
        return chain(parts, Either)

    def _both(self) -> Condition:
        parts = [self._not()]
        while self._accept("and"):
            parts.append(self._not())
        return chain(parts, Both)

    def _not(self) -> Condition:
        if not self._token.is_a("not", "("):
            return self._comparison()
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._error(f"more than {DEEPEST} levels of brackets and 'not'")
        found: Condition
        if self._accept("not"):
            found = Not(self._not())
        else:
            self._take()
            found = self._either()
            self._expect(")")
        self._depth -= 1
        return found

    def _comparison(self) -> Condition:
        name = self._field()
        token = self._take()
        if token.is_a(*_OPERATORS):
            return compare(name, _OPERATORS[token.shown], self._value(), self._fields)
        if token.is_a("is"):
            negated = self._accept("not")
            self._expect("null")
            return _perhaps_not(is_null(name, self._fields), negated)
        negated = token if token.is_a("not") else None
        token = self._take() if negated else token
        if token.kind == "name" and token.shown.lower() == "contains":  # no keyword: a field may be called so
            return _perhaps_not(contains(name, self._value(), self._fields), negated)
        if token.is_a("in"):
            return _perhaps_not(one_of(name, self._list(), self._fields), negated)
        if token.is_a("between"):
            low = compare(name, ">=", self._value(), self._fields)
            self._expect("and")
            high = compare(name, "<=", self._value(), self._fields)
            return _perhaps_not(Both(low, high), negated)
        raise self._error(self._no_operator(name, token), token.at)

    def _no_operator(self, name: str, token: _Token) -> str:
        if token.shown.lower() in ("like", "ilike", "similar", "regexp"):
            return f"{token.shown} is not known. Search by words or by meaning instead"
        return (
            f"expected a comparison after {name} (= != < <= > >= in, not in, between, contains, is null), "
            f"found {_shown(token)}"
        )

    def _field(self) -> str:
        token = self._token
        if token.kind == "quoted":
            name = token.shown[1:-1].replace('""', '"')
        elif token.kind == "name":
            name = token.shown
        else:
            hint = '. A field with such a name is written "in quotes"' if token.kind == "word" else ""
            raise self._error(f"expected a field, found {self._found()}{hint}")
        is_null(name, self._fields)  # refuses a name that is not there
        self._take()
        return name

    def _list(self) -> list[Literals]:
        self._expect("(")
        values: list[Literals] = []
        while not self._accept(")"):
            if values and self._accept(",") is None:
                raise self._error(f"expected ',' or ')', found {self._found()}")
            values.append(self._value())
        return values

    def _value(self) -> Literals:
        token = self._token
        if token.is_a("true", "false"):
            value: Literals = token.shown.lower() == "true"
        elif token.kind == "text":
            value = token.shown[1:-1].replace("''", "'")
        elif token.kind == "number":
            value = _number(token.shown)
        else:
            raise self._error(self._no_value(token))
        self._take()
        return value

    def _no_value(self, token: _Token) -> str:
        if token.is_a("null"):
            return "nothing is equal to null. Write: is null, or: is not null"
        if token.kind in ("name", "quoted"):
            text = token.shown.strip('"').replace("'", "''")
            return f"expected a value, found {_shown(token)}. A text stands in single quotes: '{text}'"
        hint = ". Write = once" if token.is_a("=") else ""
        return f"expected a value, found {_shown(token)}{hint}"

    def _found(self) -> str:
        return _shown(self._token)

    def _error(self, what: str, at: int | None = None) -> InputError:
        """The mistake, and the text around it with a ^ before the place."""
        at = self._token.at if at is None else at
        before, after = self._source[max(0, at - 30) : at], self._source[at : at + 30]
        quote = (
            ("..." if at > 30 else "") + before + "^" + after + ("..." if len(self._source) > at + 30 else "")
        )
        return InputError(f"where: {what}, at character {at + 1}: {quote}")


def _perhaps_not(condition: Condition, negated: _Token | None) -> Condition:
    return Not(condition) if negated else condition


def _shown(token: _Token) -> str:
    if token.kind == "end":
        return "the end"
    return token.shown if token.kind in ("text", "quoted") else repr(token.shown)


def _number(shown: str) -> int | float:
    """Whole numbers stay whole; too long ones lose nothing, as no field holds them."""
    whole = shown.lstrip("+-").isdecimal()
    return int(shown) if whole and len(shown) <= 400 else float(shown)
