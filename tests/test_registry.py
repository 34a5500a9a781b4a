"""The registry type behind everything that is chosen by name: added entries, lazy packages, errors."""

import sys

import pytest

from gemel.cli.main import VERBS
from gemel.errors import InputError, ModelError
from gemel.registry import Registry


@pytest.fixture
def shapes(tmp_path, monkeypatch):
    """A lazy registry over a package of three files, one of which is not an entry."""
    folder = tmp_path / "some_shapes"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text("from gemel.registry import Registry\nSHAPES = None\n")
    (folder / "round_one.py").write_text(
        '"""A circle.\n\nMore."""\nfrom some_shapes import base\nbase.SHAPES.add("round-one", "ring")(len)\n'
    )
    (folder / "empty.py").write_text('"""Nothing."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    table = Registry("shape", package="some_shapes", aliases={"ring": "round_one"}, skip=("base",))
    import some_shapes.base

    some_shapes.base.SHAPES = table
    yield table
    for name in [name for name in sys.modules if name.startswith("some_shapes")]:
        del sys.modules[name]


def test_entries_are_added_under_each_of_their_names():
    table = Registry("animal")

    @table.add("cat", "felis")
    class Cat:
        pass

    assert table["cat"] is table["felis"] is Cat
    assert list(table) == ["cat", "felis"] and len(table) == 2
    assert "cat" in table and "dog" not in table


def test_one_name_is_one_entry():
    table = Registry("animal")
    table.add("cat")(1)
    with pytest.raises(AssertionError, match="two entries for the animal 'cat'"):
        table.add("cat")(2)


def test_an_unknown_name_is_an_error_with_the_closest_match_and_all_names():
    table = Registry("animal", error=ModelError)
    table.add("cat")(1)
    table.add("dog")(2)
    with pytest.raises(ModelError, match=r"^unknown animal 'cta'\. Did you mean 'cat'\? Known: cat, dog$"):
        table["cta"]


def test_a_lazy_table_lists_its_files_without_importing_them(shapes):
    assert list(shapes) == ["empty", "ring", "round-one"] and len(shapes) == 3
    assert "ring" in shapes and "base" not in shapes
    assert shapes.about("round-one") == shapes.about("ring") == "A circle."
    assert "some_shapes.round_one" not in sys.modules


def test_a_lazy_entry_is_imported_when_used(shapes):
    assert shapes["ring"] is len
    assert shapes["round-one"] is len
    assert "some_shapes.empty" not in sys.modules
    with pytest.raises(
        InputError, match=r"unknown shape 'round'\. Did you mean 'round-one'\? Known: empty, "
    ):
        shapes["round"]
    with pytest.raises(AssertionError, match=r"some_shapes\.empty does not add the shape 'empty'"):
        shapes["empty"]


def test_an_added_entry_is_listed_with_the_files(shapes):
    shapes.add("square")(abs)
    assert shapes["square"] is abs
    assert "square" in list(shapes)


def test_a_new_file_is_a_new_entry(shapes, tmp_path):
    (tmp_path / "some_shapes" / "cone.py").write_text(
        "from some_shapes.base import SHAPES\nSHAPES.add('cone')(abs)\n"
    )
    assert "cone" in shapes
    assert shapes["cone"] is abs


def test_an_attribute_is_the_entry_where_modules_do_not_add_themselves(shapes, tmp_path):
    (tmp_path / "some_shapes" / "cube.py").write_text('"""A cube."""\ncommand = 3\n')
    table = Registry("shape", package="some_shapes", attribute="command")
    assert table["cube"] == 3
    assert table.about("cube") == "A cube."


def test_help_does_not_import_verbs():
    import subprocess

    code = (
        "import sys; from gemel.cli.main import main; main(['--help']);"
        "print([n for n in sys.modules if n.startswith('gemel.cli.verbs.')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.endswith("[]\n")
    assert all(VERBS.about(name) in " ".join(shown.split()) for name in VERBS)
