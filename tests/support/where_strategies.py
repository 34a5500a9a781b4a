"""Hypothesis strategies for any condition and any row; the fields have every type."""

from datetime import UTC

from hypothesis import strategies as st

from gemel.index.where import Both, Compare, Contains, Either, IsNull, Not, OneOf

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["", "'", "''", '"', "\\", "\\'", "' or 1=1 --", "`", "%s", "{}", "e\u0301", "\U0010ffff", "en"]
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
