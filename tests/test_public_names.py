"""What `gemel` offers, as a literal list: a change to the surface is a visible diff here."""

import importlib
import subprocess
import sys

import pytest

import gemel

PUBLIC = [
    "EncodeOptions",
    "EncodeReport",
    "Fingerprint",
    "GemelError",
    "Hits",
    "InputError",
    "MissingExtra",
    "Model",
    "ModelError",
    "Pairs",
    "WorkError",
    "__version__",
    "encode_to_folder",
    "load",
    "quantize",
    "read_folder",
    "rescore",
    "search",
    "similar_pairs",
]


def test_the_public_names_are_these():
    assert sorted(gemel.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there_and_documented(name):
    thing = getattr(gemel, name)
    if name != "__version__":
        assert thing.__doc__, f"gemel.{name} has no docstring"
        assert callable(thing)


def test_dir_shows_the_public_names():
    assert set(PUBLIC) <= set(dir(gemel))


def test_search_is_the_function_even_after_its_module_was_imported():
    # A function and a module of one name: importing the module must not hide the function.
    code = "import gemel.search, gemel.pairs, gemel; assert callable(gemel.search), gemel.search"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    importlib.import_module("gemel.search")
    assert callable(gemel.search)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'encoder_of_dreams'"):
        _ = gemel.encoder_of_dreams
