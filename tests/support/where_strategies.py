"""Hypothesis strategies for any condition and any row; the fields have every type. And conditions as strings."""

from datetime import UTC

from hypothesis import strategies as st

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
    Not,
    OneOf,
    chain,
    links,
    show_value,
)

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["", "'", "''", '"', "\\", "\\'", "' or 1=1 --", "`", "%s", "{}", "e\u0301", "\U0010ffff", "en"]
)
PATTERNS = (
    st.lists(
        st.sampled_from(["%", "_", "\\%", "\\_", "\\\\", "e", "n", "\\n", "'", ".", "*", "\\e"]), max_size=6
    )
    .map("".join)
    .flatmap(lambda start: TEXTS.map(lambda end: start + end.replace("\\", "\\\\")))
)
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0)
DAYS = st.dates()
MOMENTS = st.datetimes(timezones=st.just(UTC))
VALUES = {
    "lang": TEXTS,
    "year": INTS,
    "price": FLOATS,
    "open": st.booleans(),
    "id": TEXTS,
    "day": DAYS,
    "at": MOMENTS,
}
LISTED = {"tags": TEXTS, "sizes": INTS, "days": DAYS, "moments": MOMENTS}
"""Fields that hold lists, and what is in them."""
ORDERED = ["=", "!=", "<", "<=", ">", ">="]


def leaves():
    kinds = []
    for name, values in VALUES.items():
        signs = ["=", "!="] if name == "open" else ORDERED
        kinds.append(st.builds(Compare, st.just(name), st.sampled_from(signs), values))
        kinds.append(st.builds(OneOf, st.just(name), st.lists(values, max_size=3).map(tuple)))
        kinds.append(st.just(IsNull(name)))
        if values is TEXTS:
            kinds.append(st.builds(Like, st.just(name), PATTERNS))
    for name, values in LISTED.items():
        kinds.append(st.builds(Contains, st.just(name), values))
        kinds.append(st.just(IsNull(name)))
    return st.one_of(kinds)


CONDITIONS = st.recursive(
    leaves(),
    lambda inner: st.builds(Both, inner, inner) | st.builds(Either, inner, inner) | st.builds(Not, inner),
    max_leaves=8,
)
ROWS = st.fixed_dictionaries(
    {name: values if name == "id" else st.none() | values for name, values in VALUES.items()}
    | {name: st.none() | st.lists(values, max_size=3) for name, values in LISTED.items()}
)


def show(condition: Condition) -> str:
    """The condition as a string that parses to an equal tree."""
    if isinstance(condition, Both | Either):
        join = type(condition)
        parts = links(condition, join)
        if chain(parts, join) != condition:
            parts = [condition.left, condition.right]
        word = " and " if join is Both else " or "
        return word.join(_inside(part) for part in parts)
    if isinstance(condition, Not):
        return f"not {_inside(condition.inner)}"
    name = _show_name(condition.field)
    if isinstance(condition, IsNull):
        return f"{name} is null"
    if isinstance(condition, OneOf):
        return f"{name} in ({', '.join(map(show_value, condition.values))})"
    if isinstance(condition, Like):
        return f"{name} like {show_value(condition.pattern)}"
    sign = "contains" if isinstance(condition, Contains) else condition.operator
    return f"{name} {sign} {show_value(condition.value)}"


def _inside(condition: Condition) -> str:
    shown = show(condition)
    return f"({shown})" if isinstance(condition, Both | Either) else shown


def _show_name(name: str) -> str:
    if NAME.fullmatch(name) and name.lower() not in KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'
