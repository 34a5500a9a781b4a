"""Options: sizes as text, and keywords that agree with the dataclasses."""

from dataclasses import fields
from inspect import signature
from typing import get_type_hints

import pytest

import gemel
from gemel.errors import InputError
from gemel.options import CrossKeywords, CrossOptions, EncodeKeywords, EncodeOptions, parse_bytes


@pytest.mark.parametrize(
    ("options", "keywords"), [(EncodeOptions, EncodeKeywords), (CrossOptions, CrossKeywords)]
)
def test_keywords_are_the_fields_of_the_options(options, keywords):
    assert get_type_hints(keywords) == get_type_hints(options)
    assert list(get_type_hints(keywords)) == [field.name for field in fields(options)]


def test_all_methods_of_encoding_take_the_same_keywords():
    for method in (
        "encode",
        "encode_query",
        "encode_document",
        "encode_report",
        "encode_stream",
        "tokens",
        "passages",
    ):
        parameters = signature(getattr(gemel.Model, method)).parameters
        assert parameters["options"].default is None
        assert parameters["keywords"].annotation == "Unpack[EncodeKeywords]"
    for method in ("scores", "probabilities", "rank", "logits", "relation"):
        assert (
            signature(getattr(gemel.CrossModel, method)).parameters["keywords"].annotation
            == "Unpack[CrossKeywords]"
        )


@pytest.mark.parametrize(
    ("size", "count"), [(7, 7), ("7", 7), ("2 kB", 2000), ("1.5MB", 1_500_000), ("1GiB", 2**30)]
)
def test_sizes_are_read(size, count):
    assert parse_bytes(size) == count


@pytest.mark.parametrize("size", ["", "MB", "-1", 0, -5, "1 parsec", True, None, "0.1"])
def test_an_invalid_size_is_refused(size):
    with pytest.raises(InputError, match="memory must be bytes or a size like"):
        parse_bytes(size)
