"""Conditions as strings or dictionaries to a checked tree (`where.py`).

As dictionaries: {"lang": "en"}, {"lang": ["en", "de"]} for one of these, {"lang": None} for null,
{"year": {">=": 2020, "<": 2025}}, {"tags": {"contains": "new"}}, {"lang": {"like": "en%"}}; and
{"and": [...]}, {"or": [...]}, {"not": {...}}. Several keys mean all of them. Checked are fields, types of values,
and the size of a condition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias, get_args

from gemel.errors import InputError, did_you_mean
from gemel.index.fields import INT_LIMIT, KINDS, checked_time, plain_value, shortened
from gemel.index.port import LISTS, FieldType
from gemel.index.where import (
    KEYWORDS,
    NAME,
    Both,
    Compare,
    Condition,
    Contains,
    Either,
    IsNull,
    Like,
    Literals,
    Not,
    OneOf,
    Operator,
    chain,
    escape_like,
    links,
    pattern_segments,
    show_value,
)

Fields: TypeAlias = Mapping[str, FieldType]

_WORDS = ("in", "not in", "between", "contains", "not contains", "like", "not like")


def parse_where(where: str | Mapping[str, Any] | Condition | None, fields: Fields) -> Condition | None:
    """The condition as a tree over `fields` (and `id`) only; None: no condition.

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

    def __init__(self, source: str, fields: Fields) -> None:
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
        if token.kind == "name" and token.shown.lower() in _FORMS:  # no keywords: a field may be called so
            form = _FORMS[token.shown.lower()]
            return _perhaps_not(form(name, self._value(), self._fields), negated)
        if token.is_a("in"):
            return _perhaps_not(one_of(name, self._list(), self._fields), negated)
        if token.is_a("between"):
            low = compare(name, ">=", self._value(), self._fields)
            self._expect("and")
            high = compare(name, "<=", self._value(), self._fields)
            return _perhaps_not(Both(low, high), negated)
        raise self._error(self._no_operator(name, token), token.at)

    def _no_operator(self, name: str, token: _Token) -> str:
        if token.shown.lower() in ("ilike", "similar", "regexp", "glob"):
            return f"{token.shown} is not known. Write like 'abc%', or contains, or search by words or by meaning"
        return (
            f"expected a comparison after {name} (= != < <= > >= in, not in, between, contains, like, is null), "
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
        """The mistake, and the text around it with a ^ before its position."""
        at = self._token.at if at is None else at
        before, after = self._source[max(0, at - 30) : at], self._source[at : at + 30]
        quote = (
            ("..." if at > 30 else "") + before + "^" + after + ("..." if len(self._source) > at + 30 else "")
        )
        return InputError(f"where: {what}, at character {at + 1}: {quote}", code="GEM-403")


def _perhaps_not(condition: Condition, negated: object) -> Condition:
    return Not(condition) if negated else condition


def _shown(token: _Token) -> str:
    if token.kind == "end":
        return "the end"
    return token.shown if token.kind in ("text", "quoted") else repr(token.shown)


def _number(shown: str) -> int | float:
    """Whole numbers stay whole; too long ones lose nothing, as no field holds them."""
    whole = shown.lstrip("+-").isdecimal()
    return int(shown) if whole and len(shown) <= 400 else float(shown)


def from_dict(where: Mapping[str, Any], fields: Fields, depth: int = 0) -> Condition:
    if depth > DEEPEST:
        raise InputError(f"the condition is more than {DEEPEST} levels deep")
    if not isinstance(where, Mapping):
        raise InputError(f"expected a dictionary of conditions, found {where!r:.60}")
    if not where:
        raise InputError("where is empty. Write a condition, or leave it out")
    return chain([_entry(name, value, fields, depth) for name, value in where.items()], Both)


def _entry(name: Any, value: Any, fields: Fields, depth: int) -> Condition:  # noqa: ANN401 - anything may come in
    if not isinstance(name, str):
        raise InputError(f"a field is named by a string, not by {name!r:.60}")
    if name in ("and", "or"):
        if not isinstance(value, list | tuple) or not value:
            raise InputError(f"{name!r} needs a list of conditions, at least one; got {value!r:.60}")
        if len(value) > MOST_COMPARISONS:
            raise InputError(
                f"{name!r} joins {len(value):,} conditions, at most {MOST_COMPARISONS:,} are allowed"
            )
        parts = [from_dict(each, fields, depth + 1) for each in value]
        return chain(parts, Both if name == "and" else Either)
    if name == "not":
        return Not(from_dict(value, fields, depth + 1))
    if isinstance(value, Mapping):
        if not value:
            raise InputError(f"{name} has no comparison. Known: {_known()}")
        return chain([_comparison(name, sign, each, fields) for sign, each in value.items()], Both)
    return _comparison(name, "in" if _is_list(value) else "=", value, fields)


def _comparison(name: str, sign: Any, value: Any, fields: Fields) -> Condition:  # noqa: ANN401
    if sign in ("in", "not in"):
        if not _is_list(value):
            raise InputError(f"{name} {sign} needs a list of values, got {value!r:.60}")
        return _perhaps_not(_one_of(name, value, fields), sign == "not in")
    if sign in ("contains", "not contains", "like", "not like"):
        form = _FORMS[sign.removeprefix("not ")]
        return _perhaps_not(form(name, value, fields), sign.startswith("not "))
    if sign == "between":
        if not _is_list(value) or len(value) != 2:
            raise InputError(f"{name} between needs a list of two values, got {value!r:.60}")
        low, high = value
        return Both(compare(name, ">=", low, fields), compare(name, "<=", high, fields))
    if sign not in _OPERATORS:
        raise InputError(f"unknown comparison {sign!r:.60} of {name}. Known: {_known()}")
    sign = _OPERATORS[sign]
    if value is None and sign in ("=", "!="):
        return _perhaps_not(is_null(name, fields), sign == "!=")
    return compare(name, sign, value, fields)


def _one_of(name: str, values: Any, fields: Fields) -> Condition:  # noqa: ANN401
    """Null among the values counts as one of them."""
    found = one_of(name, [value for value in values if value is not None], fields)
    return Either(found, is_null(name, fields)) if len(found.values) < len(values) else found


def _is_list(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, list | tuple | set | frozenset)


def _known() -> str:
    return ", ".join((*_OPERATORS, *_WORDS))


LONGEST = 10_000
"""Characters of a condition that is a string."""

DEEPEST = 50
"""Levels of brackets and `not`."""

MOST_COMPARISONS = 1_000

MOST_VALUES = 10_000
"""In one list."""

_LONGEST_PATTERN = 1_000  # characters

_MOST_LEVELS = 300  # of a tree that a program has built: as many calls would be open at once

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")

_A = {kind: f"a{'n' if kind == 'int' else ''} {kind}" for kind in KINDS.values()}


def kind_of(name: str, fields: Fields) -> FieldType:
    """The type of a field; `id` is there without being declared."""
    if name in fields:
        return fields[name]
    if name == "id":
        return "text"
    hint = did_you_mean(name, [*fields, "id"])
    raise InputError(f"unknown field {name!r}.{hint} Known: {', '.join(fields) or 'id only'}", code="GEM-403")


def compare(name: str, operator: Any, value: Any, fields: Fields) -> Compare:  # noqa: ANN401
    """A checked comparison, its value as the field keeps it."""
    kind = kind_of(name, fields)
    if operator not in get_args(Operator):
        raise InputError(
            f"unknown comparison {operator!r:.60} of {name}. Known: {', '.join(get_args(Operator))}"
        )
    if kind in LISTS:
        raise InputError(_of_a_list(name, kind, value))
    if kind == "bool" and operator not in ("=", "!="):
        raise InputError(f"{name} is a bool field: it can be = or != a value, not {operator}")
    return Compare(name, operator, _value(name, kind, operator, value))


def one_of(name: str, values: Any, fields: Fields) -> OneOf:  # noqa: ANN401
    kind = kind_of(name, fields)
    if kind in LISTS:
        raise InputError(_of_a_list(name, kind, next(iter(values), None)))
    if len(values) > MOST_VALUES:
        raise InputError(
            f"the list for {name} has {len(values):,} values, at most {MOST_VALUES:,} are allowed"
        )
    return OneOf(name, tuple(_value(name, kind, "in", value) for value in values))


def contains(name: str, value: Any, fields: Fields) -> Contains | Like:  # noqa: ANN401
    """A list that has the value in it, or a text that has these characters in it."""
    kind = kind_of(name, fields)
    if kind == "text":
        return like(name, f"%{escape_like(str(_value(name, kind, 'contains', value)))}%", fields)
    if kind not in LISTS:
        raise InputError(
            f"{name} is {_A[kind]} field: only a text or a list contains something. Compare it with = or in"
        )
    return Contains(name, _value(name, LISTS[kind], "contains", value))


def like(name: str, pattern: Any, fields: Fields) -> Like:  # noqa: ANN401
    """A text of this form."""
    kind = kind_of(name, fields)
    if kind != "text":
        instead = f"{name} contains ..." if kind in LISTS else "= or in"
        a = f"a list of {LISTS[kind]}" if kind in LISTS else f"{_A[kind]} field"
        raise InputError(f"{name} is {a}: only a text field can be like a pattern. Compare it with {instead}")
    text = str(_value(name, kind, "like", pattern))
    if len(text) > _LONGEST_PATTERN:
        raise InputError(
            f"the pattern for {name} has {len(text):,} characters, at most {_LONGEST_PATTERN:,} are allowed"
        )
    try:
        pattern_segments(text)
    except ValueError:
        raise InputError(
            f"the pattern {_short(text)} for {name} ends with a single \\. Write \\\\ for the character itself"
        ) from None
    return Like(name, text)


_FORMS = {"contains": contains, "like": like}


def _of_a_list(name: str, kind: FieldType, value: Any) -> str:  # noqa: ANN401
    shown = _short(value) if type(value) in KINDS else "..."
    return f"{name} is a list of {LISTS[kind]}: write {name} contains {shown}, or {name} is null"


def is_null(name: str, fields: Fields) -> IsNull:
    kind_of(name, fields)
    return IsNull(name)


def check_tree(condition: Condition, fields: Fields) -> Condition:
    """A tree that a program has built, with the values as the fields keep them."""
    levels, nodes = 0, [condition]
    while nodes:
        levels += 1
        if levels > _MOST_LEVELS:
            raise InputError(
                f"the condition has more than {_MOST_LEVELS} levels. Join its parts with `chain`"
            )
        nodes = [inner for node in nodes for inner in _inner(node)]
    return _checked(condition, fields)


def check_size(condition: Condition) -> Condition:
    """Not too deep and not too many comparisons, whatever it was made from."""
    depth, comparisons, nodes = -1, 0, [condition]
    while nodes:
        depth += 1
        comparisons += sum(not isinstance(node, Both | Either | Not) for node in nodes)
        nodes = [inner for node in nodes for inner in _below(node)]
    if depth > DEEPEST:
        raise InputError(f"the condition is {depth} levels deep, at most {DEEPEST} are allowed")
    if comparisons > MOST_COMPARISONS:
        raise InputError(
            f"the condition has {comparisons:,} comparisons, at most {MOST_COMPARISONS:,} are allowed. "
            "Many values of one field go into a list: field in (...)"
        )
    return condition


def _inner(node: Condition) -> list[Condition]:
    if isinstance(node, Both | Either):
        return [node.left, node.right]
    return [node.inner] if isinstance(node, Not) else []


def _below(node: Condition) -> list[Condition]:
    """As `_inner`, a chain of one word counted as one level."""
    return links(node, type(node)) if isinstance(node, Both | Either) else _inner(node)


def _checked(node: Condition, fields: Fields) -> Condition:
    if isinstance(node, Both | Either):
        return type(node)(_checked(node.left, fields), _checked(node.right, fields))
    if isinstance(node, Not):
        return Not(_checked(node.inner, fields))
    if isinstance(node, Compare):
        return compare(node.field, node.operator, node.value, fields)
    if isinstance(node, OneOf):
        return one_of(node.field, node.values, fields)
    if isinstance(node, Contains):
        return contains(node.field, node.value, fields)
    if isinstance(node, Like):
        return like(node.field, node.pattern, fields)
    return is_null(node.field, fields)


def _value(name: str, kind: FieldType, operator: str, value: Any) -> Literals:  # noqa: ANN401
    """The value as the field keeps it: whole numbers of an int field as int, numbers of a float field as float."""
    plain = plain_value(value)
    if kind in ("date", "datetime") and isinstance(plain, str | date):
        return checked_time(f"{name} is compared with a value that", plain, kind)
    if type(plain) not in KINDS:
        raise InputError(
            f"{name} is compared with {_short(plain)}, a {type(plain).__name__}, which no field holds"
        )
    if isinstance(plain, str):
        _check_characters(name, plain)
    elif isinstance(plain, float) and not math.isfinite(plain):
        raise InputError(f"{name} is compared with {plain!r}: only finite numbers can be")
    fitting = _fitting(kind, plain)
    if fitting is not None and (
        type(fitting) is type(plain) or {kind, KINDS[type(plain)]} == {"int", "float"}
    ):
        return fitting
    if kind == KINDS[type(plain)]:
        raise InputError(f"{name} is an int field of 64 bits, and {_short(plain)} does not fit")
    raise InputError(_mismatch(name, kind, operator, plain, fitting))


def _fitting(kind: FieldType, value: Literals) -> Literals | None:
    """The value, or the one that was probably meant for a field of this type; None: there is none."""
    if kind in ("date", "datetime"):
        return None
    if kind == "text":
        if isinstance(value, date):
            return value.isoformat()
        return value if isinstance(value, str) else show_value(value)
    if isinstance(value, date):
        return None
    text = str(value).strip()
    if kind == "bool":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
        whole = int(number) if isinstance(value, float) or not _WHOLE.fullmatch(text) else int(text)
    except (ValueError, OverflowError):
        return None
    if kind == "float":
        return number + 0.0 if math.isfinite(number) else None  # -0.0 becomes 0.0
    exact = _WHOLE.fullmatch(text) or number == whole
    return whole if exact and -INT_LIMIT <= whole < INT_LIMIT else None


def _mismatch(name: str, kind: FieldType, operator: str, value: Literals, fitting: Literals | None) -> str:
    found = _A[KINDS[type(value)]]
    text = f"{name} is {_A[kind]} field, but {_short(value)} is {found}"
    if fitting is None:
        dates = kind.removesuffix("s") in ("date", "datetime")
        return f"{text}: write {name} {operator} '2024-12-31'" if dates else text
    meant = _short(fitting)
    if kind == "text" and operator in ("<", "<=", ">", ">=") and isinstance(value, int | float):
        # '10' < '9': the comparison of texts would leave out rows without a word.
        number = KINDS[type(value)]
        instead = f"read the column as {number}: --field {name}:{number}"
        if name == "id":
            instead = "keep the number in a field of another name too: ids are texts"
        return f"{text}. Texts are ordered by characters, '10' before '9'. To compare numbers, {instead}"
    return f"{text}: write {name} {operator} {f'({meant}, ...)' if operator == 'in' else meant}"


def _short(value: Any) -> str:  # noqa: ANN401
    return shortened(show_value(value) if type(value) in KINDS else repr(value))


def _check_characters(name: str, text: str) -> None:
    if "\0" in text:
        raise InputError(f"{name} is compared with a text that has a NUL character; no field holds one")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{name} is compared with a text that has half a character (a lone surrogate)"
        ) from None
