"""What `gemel` offers, as a literal list: a change to the surface is a visible diff here."""

import re
import tomllib
from pathlib import Path

import pytest

import gemel

PUBLIC = [
    "Answer",
    "Calibration",
    "Clusters",
    "CrossModel",
    "DedupeResult",
    "DistillResult",
    "EncodeOptions",
    "EncodeReport",
    "EncodedFolder",
    "Explanation",
    "Fingerprint",
    "GemelError",
    "Hits",
    "Index",
    "InputError",
    "MissingExtra",
    "Model",
    "ModelError",
    "Pairs",
    "TrainOptions",
    "TrainResult",
    "TruncationWarning",
    "WorkError",
    "calibrate",
    "cluster",
    "dedupe",
    "distill",
    "encode_to_folder",
    "evaluate",
    "explain",
    "load",
    "load_cross",
    "open_index",
    "quantize",
    "read_folder",
    "repair_index",
    "rescore",
    "search",
    "similar_pairs",
    "train",
]


def test_the_public_names_are_these():
    assert sorted(gemel.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there_and_documented(name):
    thing = getattr(gemel, name)
    assert thing.__doc__, f"gemel.{name} has no docstring"
    assert callable(thing)


def test_the_version_is_that_of_the_package():
    assert re.fullmatch(r"\d+\.\d+\.\d+", gemel.__version__)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == gemel.__version__


def test_dir_shows_the_public_names():
    assert set(PUBLIC) <= set(dir(gemel))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'encoder_of_dreams'"):
        _ = gemel.encoder_of_dreams


def test_a_public_function_is_not_hidden_by_a_module_of_its_name():
    """Importing gemel.x makes `gemel.x` the module: a module must not be called as a public name is."""
    modules = {path.stem for path in Path(gemel.__file__).parent.iterdir()}
    assert not modules & set(gemel.__all__)
