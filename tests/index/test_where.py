"""Conditions: parsing, meaning, errors; and the same in the languages of the tables."""

import re
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemel.errors import InputError
from gemel.index.where import (
    Both,
    Compare,
    Contains,
    Either,
    IsNull,
    Like,
    Not,
    OneOf,
    chain,
    links,
    matches,
    pushed,
    truth,
)
from gemel.index.where_parse import parse_where
from where_strategies import CONDITIONS, ROWS, show

FIELDS = {
    "lang": "text",
    "year": "int",
    "price": "float",
    "open": "bool",
    "and": "text",
    'a "b"': "int",
    "y": "int",
    "day": "date",
    "at": "datetime",
    "tags": "texts",
    "sizes": "ints",
    "days": "dates",
    "moments": "datetimes",
    "contains": "int",
    "like": "text",
}
EN, NEW = Compare("lang", "=", "en"), Compare("year", ">=", 2020)


def parse(where, fields=FIELDS):
    return parse_where(where, fields)


@pytest.mark.parametrize(
    ("where", "tree"),
    [
        ("lang = 'en'", EN),
        ("day >= '2024-02-29'", Compare("day", ">=", date(2024, 2, 29))),
        ("day in ('2024-02-29')", OneOf("day", (date(2024, 2, 29),))),
        ("at < '2024-02-29T12:00'", Compare("at", "<", datetime(2024, 2, 29, 12, tzinfo=UTC))),
        ("at = '2024-02-29T12:00+02:00'", Compare("at", "=", datetime(2024, 2, 29, 10, tzinfo=UTC))),
        ("at = '2024-02-29'", Compare("at", "=", datetime(2024, 2, 29, tzinfo=UTC))),
        ("tags contains 'new'", Contains("tags", "new")),
        (
            "tags CONTAINS 'new' and sizes not contains 3",
            Both(Contains("tags", "new"), Not(Contains("sizes", 3))),
        ),
        ("days contains '2024-02-29'", Contains("days", date(2024, 2, 29))),
        ("contains = 3", Compare("contains", "=", 3)),
        ("lang like 'e%'", Like("lang", "e%")),
        ("lang NOT LIKE '_n' and id like 'a\\_%'", Both(Not(Like("lang", "_n")), Like("id", "a\\_%"))),
        ("like like '%'", Like("like", "%")),
        ("lang contains '5%_\\'", Like("lang", "%5\\%\\_\\\\%")),
        ("lang not contains 'e'", Not(Like("lang", "%e%"))),
        ({"lang": {"like": "e%", "not like": "_s"}}, Both(Like("lang", "e%"), Not(Like("lang", "_s")))),
        ({"lang": {"contains": "e"}}, Like("lang", "%e%")),
        (Contains("lang", "e"), Like("lang", "%e%")),
        ({"tags": {"contains": "new"}}, Contains("tags", "new")),
        ({"tags": {"not contains": "new"}}, Not(Contains("tags", "new"))),
        ({"day": {">=": date(2024, 2, 29)}}, Compare("day", ">=", date(2024, 2, 29))),
        ({"at": datetime(2024, 2, 29)}, Compare("at", "=", datetime(2024, 2, 29, tzinfo=UTC))),
        ("lang='en'and year>=2020", Both(EN, NEW)),
        ("lang = 'en' OR NOT year >= 2020", Either(EN, Not(NEW))),
        ("lang <> 'it''s'", Compare("lang", "!=", "it's")),
        ("year != -5", Compare("year", "!=", -5)),
        ("year < 2e3", Compare("year", "<", 2000)),
        ("price <= 1", Compare("price", "<=", 1.0)),
        ("price > .5", Compare("price", ">", 0.5)),
        ("price = -0.0", Compare("price", "=", 0.0)),
        ("open = TRUE", Compare("open", "=", True)),
        ("lang in ('en', 'de')", OneOf("lang", ("en", "de"))),
        ("lang not in ('en')", Not(OneOf("lang", ("en",)))),
        ("lang in ()", OneOf("lang", ())),
        (
            "year between 1 and 3 and lang = 'en'",
            Both(Both(Compare("year", ">=", 1), Compare("year", "<=", 3)), EN),
        ),
        ("year not between 1 and 3", Not(Both(Compare("year", ">=", 1), Compare("year", "<=", 3)))),
        ("lang is null", IsNull("lang")),
        ("lang Is Not Null", Not(IsNull("lang"))),
        ("\"and\" = 'x'", Compare("and", "=", "x")),
        ('"a ""b""" = 3', Compare('a "b"', "=", 3)),
        ("id = 'a'", Compare("id", "=", "a")),
        ("lang = 'en' or lang = 'en' and year >= 2020", Either(EN, Both(EN, NEW))),
        ("(lang = 'en' or lang = 'en') and year >= 2020", Both(Either(EN, EN), NEW)),
        ("not not lang = 'en'", Not(Not(EN))),
        ("not (lang = 'en') and year >= 2020", Both(Not(EN), NEW)),
        ("lang = 'en' and lang = 'en' and year >= 2020", Both(Both(EN, EN), NEW)),
        ("\tlang\n=\r\n'en'  ", EN),
        ("lang = '-- ; drop table'", Compare("lang", "=", "-- ; drop table")),
        ("year = 9223372036854775807", Compare("year", "=", 2**63 - 1)),
        ("year = -9223372036854775808", Compare("year", "=", -(2**63))),
    ],
)
def test_strings_are_read(where, tree):
    result = parse(where)
    assert result == tree
    assert show(result) == show(tree)  # 1 == 1.0 == True, but they are not shown alike


@pytest.mark.parametrize(
    ("where", "string"),
    [
        ({"lang": "en"}, "lang = 'en'"),
        ({"lang": "en", "year": {">=": 2020, "<": 2025}}, "lang = 'en' and (year >= 2020 and year < 2025)"),
        ({"lang": ["en", "de"]}, "lang in ('en', 'de')"),
        ({"lang": ["en", None]}, "lang in ('en') or lang is null"),
        ({"lang": []}, "lang in ()"),
        ({"lang": None}, "lang is null"),
        ({"lang": {"!=": None}}, "not lang is null"),
        ({"lang": {"=": None}}, "lang is null"),
        ({"year": {"<>": 3}}, "year != 3"),
        ({"year": {"not in": [1, 2]}}, "not year in (1, 2)"),
        ({"year": {"in": (1, 2)}}, "year in (1, 2)"),
        ({"year": {"between": [1, 2]}}, "year >= 1 and year <= 2"),
        ({"and": [{"lang": "en"}, {"year": 1}]}, "lang = 'en' and year = 1"),
        ({"or": [{"lang": "en"}, {"year": 1, "open": True}]}, "lang = 'en' or year = 1 and open = true"),
        ({"not": {"lang": "en"}}, "not lang = 'en'"),
        ({"price": 2, "open": False}, "price = 2.0 and open = false"),
    ],
)
def test_dictionaries_are_read(where, string):
    assert show(parse(where)) == show(parse(string))


def test_none_is_no_condition_and_a_tree_is_accepted():
    assert parse(None) is None
    assert parse(Both(EN, Not(IsNull("year")))) == Both(EN, Not(IsNull("year")))
    assert show(parse(Compare("price", "=", 2))) == "price = 2.0"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lnag = 'en'", "unknown field 'lnag'. Did you mean 'lang'? Known: lang, year, price, open"),
        ({"zzz": 1}, "unknown field 'zzz'. Known: lang"),
        ("year = '2020'", "year is an int field, but '2020' is a text: write year = 2020"),
        ({"year": "2020"}, "year is an int field, but '2020' is a text: write year = 2020"),
        ("year in ('2020')", "year is an int field, but '2020' is a text: write year in (2020, ...)"),
        ("year > 'abc'", "year is an int field, but 'abc' is a text"),
        ("year = 20.5", "year is an int field, but 20.5 is a float"),
        ("year = true", "year is an int field, but true is a bool"),
        (
            "year = 9223372036854775808",
            "year is an int field of 64 bits, and 9223372036854775808 does not fit",
        ),
        (f"year = {'9' * 5000}", "year is compared with inf: only finite numbers can be"),
        ("price = 1e999", "price is compared with inf: only finite numbers can be"),
        ({"price": float("nan")}, "price is compared with nan"),
        ("price = '1.5'", "price is a float field, but '1.5' is a text: write price = 1.5"),
        ("lang = 5", "lang is a text field, but 5 is an int: write lang = '5'"),
        ("lang = true", "lang is a text field, but true is a bool: write lang = 'true'"),
        ("open = 1", "open is a bool field, but 1 is an int: write open = true"),
        ("open > false", "open is a bool field: it can be = or != a value, not >"),
        (
            "lang = null",
            "nothing is equal to null. Write: is null, or: is not null, at character 8: lang = ^null",
        ),
        ("lang = en", "A text stands in single quotes: 'en', at character 8: lang = ^en"),
        ('lang = "en"', "A text stands in single quotes: 'en', at character 8"),
        ("lang == 'en'", "found '='. Write = once, at character 7: lang =^= 'en'"),
        ("lang = and", "expected a value, found 'and', at character 8: lang = ^and"),
        ("lang =", "expected a value, found the end, at character 7: lang =^"),
        ("lang", "expected a comparison after lang (= !="),
        ("lang ilike 'e%'", "ilike is not known. Write like 'abc%', or contains, or search by words"),
        ("lang like 'e\\'", "the pattern 'e\\' for lang ends with a single \\. Write \\\\"),
        ("lang like 3", "lang is a text field, but 3 is an int: write lang like '3'"),
        (
            "year like '2%'",
            "year is an int field: only a text field can be like a pattern. Compare it with = or in",
        ),
        (
            "tags like 'n%'",
            "tags is a list of text: only a text field can be like a pattern. Compare it with tags",
        ),
        (
            {"lang": {"like": "a" * 1001}},
            "the pattern for lang has 1,001 characters, at most 1,000 are allowed",
        ),
        ("lang = 'en' year = 3", "expected 'and', 'or' or the end, found 'year', at character 13"),
        ("lang = 'en", "the quote ' is never closed, at character 8: lang = ^'en"),
        ("year = 20x", "this is no number, at character 8"),
        ("year = 1; drop table", "the character ';' has no meaning here, at character 9: year = 1^; drop"),
        ("(lang = 'en'", "expected ')', found the end"),
        ("lang = 'en')", "this bracket was never opened, at character 12"),
        ("year in (1 2)", "expected ',' or ')', found '2'"),
        ("year in (1,)", "expected a value, found ')'"),
        ("year in 1", "expected '(', found '1'"),
        ("year is 3", "expected 'null', found '3'"),
        ("year between 1 or 2", "expected 'and', found 'or'"),
        ("2020 <= year", "expected a field, found '2020', at character 1: ^2020 <= year"),
        ("and = 'x'", "expected a field, found 'and'. A field with such a name is written \"in quotes\""),
        ("", "where is empty. Write a condition, or leave it out"),
        ("  ", "where is empty"),
        ({}, "where is empty"),
        ({"and": []}, "'and' needs a list of conditions, at least one; got []"),
        ({"or": {"lang": "en"}}, "'or' needs a list of conditions"),
        ({"and": ["lang = 'en'"]}, "expected a dictionary of conditions, found \"lang = 'en'\""),
        ({"not": [1]}, "expected a dictionary of conditions, found [1]"),
        ({"year": {}}, "year has no comparison. Known: =, !=, <>, <, <=, >, >=, in, not in, between"),
        ({"year": {"~": 1}}, "unknown comparison '~' of year. Known: ="),
        ({"year": {"in": 3}}, "year in needs a list of values, got 3"),
        ({"year": {"between": [3]}}, "year between needs a list of two values, got [3]"),
        ({"year": {"<": None}}, "year is compared with None, a NoneType, which no field holds"),
        ({"year": {"=": {"a": 1}}}, "year is compared with {'a': 1}, a dict, which no field holds"),
        ({3: 4}, "a field is named by a string, not by 3"),
        ({"lang": "a\0b"}, "NUL character"),
        ({"lang": "a\ud800"}, "half a character"),
        (Compare("year", "; drop", 3), "unknown comparison '; drop' of year"),  # type: ignore[arg-type]
        (3, "where is a string, a dictionary or a condition, not int"),
    ],
)
def test_mistakes_are_explained(where, message):
    with pytest.raises(InputError) as error:
        parse(where)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def nested(levels):
    where = {"lang": "en"}
    for _ in range(levels):
        where = {"not": where}
    return where


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lang = '" + "x" * 10_000 + "'", "where has 10,009 characters, at most 10,000 are allowed"),
        ("(" * 5000 + "lang = 'en'", "more than 50 levels of brackets and 'not'"),
        ("not " * 51 + "lang = 'en'", "more than 50 levels"),
        (nested(51), "more than 50 levels deep"),
        ({"lang": ["a"] * 10_001}, "the list for lang has 10,001 values, at most 10,000 are allowed"),
        ({"or": [{"year": 1}] * 1001}, "'or' joins 1,001 conditions, at most 1,000"),
        (
            {"or": [{"year": [1, None]}] * 900},
            "the condition has 1,800 comparisons, at most 1,000 are allowed",
        ),
        (" or ".join(["y=1"] * 1001), "1,001 comparisons, at most 1,000"),
    ],
)
def test_conditions_that_cost_too_much_are_refused(where, message):
    with pytest.raises(InputError) as error:
        parse(where)
    assert message in str(error.value)


def test_trees_too_deep_to_walk_are_refused():
    deep = EN
    for _ in range(100_000):
        deep = Both(deep, EN)
    with pytest.raises(InputError, match="more than 300 levels"):
        parse(deep)
    while isinstance(deep, Both):  # freed step by step: Python frees such a tree recursively
        deep = deep.left


def test_conditions_within_the_limits_are_accepted():
    assert parse("(" * 50 + "lang = 'en'" + ")" * 50) == EN
    assert truth(parse("not " * 50 + "lang = 'en'"), {"lang": "en"}) is True
    assert parse(nested(50)) is not None
    many = parse(" or ".join(["y=1"] * 1000))
    assert matches(many, {"y": 1})
    assert parse(show(many).replace(" = ", "=")) == many
    assert len(parse({"lang": ["a"] * 10_000}).values) == 10_000


# What a condition means.

YES, NO, UNKNOWN = Compare("year", "=", 1), Compare("year", "=", 2), Compare("lang", "=", "x")
ROW = {"year": 1, "lang": None, "price": 0.5, "open": False, "id": "a"}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (UNKNOWN, None),
        (Not(UNKNOWN), None),
        (Compare("lang", "!=", "x"), None),
        (OneOf("lang", ("x",)), None),
        (OneOf("lang", ()), False),
        (IsNull("lang"), True),
        (Not(IsNull("lang")), False),
        (Both(YES, UNKNOWN), None),
        (Both(UNKNOWN, NO), False),
        (Both(YES, YES), True),
        (Either(YES, UNKNOWN), True),
        (Either(UNKNOWN, NO), None),
        (Either(NO, NO), False),
        (Not(Either(UNKNOWN, NO)), None),
        (OneOf("year", (3, 1)), True),
        (Compare("id", "<", "b"), True),
        (Compare("open", "!=", True), True),
    ],
)
def test_nulls_are_unknown(condition, expected):
    assert truth(condition, ROW) is expected
    assert matches(condition, ROW) is (expected is True)


def test_a_chain_is_flat_and_its_links_come_back():
    parts = [Compare("year", "=", i) for i in range(7)]
    for join in (Both, Either):
        assert links(chain(parts, join), join) == parts
    assert links(chain(parts, Both), Either) == [chain(parts, Both)]


# Any condition.


@settings(max_examples=100, deadline=None)
@given(CONDITIONS)
def test_the_text_of_a_condition_parses_to_the_same_condition(condition):
    again = parse(show(condition))
    assert again == condition
    assert show(again) == show(condition)
    assert parse(condition) == condition


WORDS = [*"lang year ( ) , . = != 3 and or not in between is null".split(), "'en'", '"', "'"]  # noqa: SIM905


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
def test_any_string_is_read_or_refused_as_input(where):
    try:
        parse(where)
    except InputError as error:
        assert str(error)


@settings(max_examples=100, deadline=None)
@given(CONDITIONS, ROWS)
def test_pushing_not_inward_does_not_change_the_result(condition, row):
    assert truth(pushed(condition), row) is truth(condition, row)
    assert truth(pushed(condition, negated=True), row) is truth(Not(condition), row)


@pytest.mark.parametrize(
    ("where", "expected_message"),
    [
        ("tags = 'new'", "tags is a list of text: write tags contains 'new', or tags is null"),
        ("tags in ('new')", "write tags contains 'new'"),
        ("year contains 2", "year is an int field: only a text or a list contains something"),
        ("sizes contains 'x'", "sizes is an int field, but 'x' is a text"),
        ("day = '2024-02-30'", "'2024-02-30', which is no date. Write '2024-12-31'"),
        ("day = 2024", "day is a date field, but 2024 is an int"),
        ("at > 'noon'", "'noon', which is no datetime"),
        ("tags contains", "expected a value, found the end"),
        ({"day": datetime(2024, 2, 29, 12)}, "but the field is date"),
        ({"lang": date(2024, 2, 29)}, "lang is a text field, but '2024-02-29' is a date"),
        ({"year": date(2024, 2, 29)}, "year is an int field, but '2024-02-29' is a date"),
        ({"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "after 9999"),
    ],
)
def test_wrong_lists_and_times_are_refused_with_the_correct_syntax(where, expected_message):
    with pytest.raises(InputError, match=re.escape(expected_message)):
        parse(where)


class TestLike:
    """The Python matcher of patterns."""

    @pytest.mark.parametrize(
        ("text", "pattern", "like"),
        [
            ("", "", True),
            ("", "%", True),
            ("", "_", False),
            ("abc", "a%", True),
            ("Abc", "a%", False),
            ("abc", "%c", True),
            ("aXbXc", "a%X%X%X%c", False),
            ("aXbXc", "a%b%c", True),
            ("ab", "a%b%ab", False),
            ("abab", "ab%ab", True),
            ("aba", "ab%ba", False),
            ("a\nb", "a_b", True),
            ("é", "_", True),
            ("e\u0301", "_", False),
            ("😀!", "_!", True),
            ("50%", "50\\%", True),
            ("50x", "50\\%", False),
            ("a.c", "a.c", True),
            ("abc", "a.c", False),
        ],
    )
    def test_a_pattern_matches_the_whole_text(self, text, pattern, like):
        assert truth(Like("lang", pattern), {"lang": text}) is like

    def test_of_null_it_is_unknown(self):
        assert truth(Not(Like("lang", "%")), {"lang": None}) is None

    def test_no_pattern_takes_long(self):
        pattern = "%a" * 400 + "%b"
        assert not matches(Like("lang", pattern), {"lang": "a" * 20_000})

    def test_a_long_pattern_is_a_mask_too(self):
        pa = pytest.importorskip("pyarrow")
        from gemel.index.lance.columns import mask

        columns = {"lang": pa.array(["ü" * 1000, "ü" * 999, None])}
        assert mask(Like("lang", "_" * 1000), columns).tolist() == [True, False, False]
