"""An installation without compiled kernels: ONNX Runtime runs the models, and one warning says so."""

import multiprocessing
import subprocess
import sys
import warnings

import pytest

import gemel
from gemel.encoder.engines import engine, native
from gemel.errors import InputError
from tiny import tiny_bert


@pytest.fixture
def folder(tmp_path):
    return tiny_bert(tmp_path / "tiny")


@pytest.fixture(autouse=True)
def not_compiled(monkeypatch):
    monkeypatch.setattr(native, "levels", list)
    engine._warn_not_compiled.cache_clear()
    yield
    engine._warn_not_compiled.cache_clear()


def encoded(folder, **settings):
    """The messages of warnings, each with its file, while a model is loaded and used."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = gemel.load(folder, **settings)
        model.encode(["a man"])
    assert model.engine_name == settings.get("engine", "onnxruntime")
    return [(str(each.message), each.filename) for each in caught if each.category is gemel.KernelWarning]


def test_the_first_model_warns_and_says_what_to_do(folder):
    [(message, file)] = encoded(folder)
    assert (
        "has no compiled kernel: ONNX Runtime runs the models, more slowly. Install GCC or Clang" in message
    )
    assert "engine='onnxruntime' chooses it without this line" in message
    assert file == __file__
    assert encoded(folder) == []  # once per process


def test_a_model_for_which_onnxruntime_was_chosen_does_not_warn(folder):
    assert encoded(folder, engine="onnxruntime") == []


def test_the_native_engine_is_still_refused_by_name(folder):
    with pytest.raises(InputError, match="no kernel was compiled at install"):
        gemel.load(folder, engine="native").encode(["a man"])


def test_the_processes_of_a_pool_do_not_repeat_it(folder, monkeypatch):
    monkeypatch.setattr(multiprocessing.process, "parent_process", multiprocessing.current_process)
    assert encoded(folder) == []


def test_with_kernels_there_is_no_warning(folder, monkeypatch):
    monkeypatch.undo()
    if not native.levels():
        pytest.skip("no kernel was compiled")
    assert encoded(folder, engine="native") == []


PROGRAM = """
import sys
from gemel.cli.main import main
from gemel.encoder.engines import native

native.levels = list
sys.exit(main(sys.argv[1:]))
"""


def test_a_command_prints_it_as_one_line(folder, tmp_path):
    (tmp_path / "texts.txt").write_text("a man\na dog\n", encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, "encode", "texts.txt", "--model", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 1 and "no compiled kernel" in lines[0]
