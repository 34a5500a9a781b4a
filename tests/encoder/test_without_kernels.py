"""An installation without compiled kernels: ONNX Runtime or NumPy runs the models, and one warning says so."""

import multiprocessing
import subprocess
import sys
import warnings

import numpy as np
import pytest

import gemel
from gemel.encoder.engines import engine, native
from gemel.errors import InputError, MissingExtra
from tiny import tiny_bert


@pytest.fixture
def folder(tmp_path):
    return tiny_bert(tmp_path / "tiny")


@pytest.fixture(autouse=True)
def not_compiled(monkeypatch):
    monkeypatch.setattr(native, "levels", list)
    engine._warn_slow.cache_clear()
    yield
    engine._warn_slow.cache_clear()


@pytest.fixture
def no_onnxruntime(monkeypatch):
    """As where the extra is not installed."""
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


def encoded(folder, expected="onnxruntime", **settings):
    """The messages of warnings, each with its file, while a model is loaded and used."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = gemel.load(folder, **settings)
        model.encode(["a man"])
    assert model.engine_name == settings.get("engine", expected)
    return [(str(each.message), each.filename) for each in caught if each.category is gemel.KernelWarning]


def test_the_first_model_warns_and_says_what_to_do(folder):
    [(message, file)] = encoded(folder)
    assert (
        "has no compiled kernel: ONNX Runtime runs the models, more slowly. Install a wheel of gemel"
        in message
    )
    assert "engine='onnxruntime' chooses it without this line" in message
    assert file == __file__
    assert encoded(folder) == []  # once per process


def test_a_model_for_which_onnxruntime_was_chosen_does_not_warn(folder):
    assert encoded(folder, engine="onnxruntime") == []


def test_without_onnxruntime_numpy_runs_the_models_and_says_so(folder, no_onnxruntime):
    [(message, file)] = encoded(folder, "numpy")
    assert "NumPy runs the models, many times more slowly. Install a wheel of gemel" in message
    assert "or ONNX Runtime (pip install 'gemel[onnxruntime]'). engine='numpy' chooses it" in message
    assert file == __file__
    assert encoded(folder, "numpy") == []
    assert encoded(folder, engine="numpy") == []


def test_numpy_gives_the_vectors_of_onnxruntime_in_the_same_bits_in_any_batch(folder):
    pytest.importorskip("onnxruntime")
    texts = ["a man", "a dog is running", "the man is playing a guitar", "a man", ""]
    model = gemel.load(folder, engine="numpy")
    vectors = model.encode(texts)
    expected = gemel.load(folder, engine="onnxruntime").encode(texts)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.array_equal(model.encode([text])[0], vector)


def test_what_numpy_cannot_do_names_the_extra(folder, no_onnxruntime):
    advice = r"needs the package 'onnxruntime'\. Install it with: pip install 'gemel\[onnxruntime\]'"
    for settings in ({"precision": "int8"}, {"engine": "onnxruntime"}, {"device": "cuda"}):
        with pytest.raises(MissingExtra, match=advice):
            encoded(folder, "numpy", **settings)


def test_a_network_that_the_kernel_cannot_run_warns_without_onnxruntime(folder, monkeypatch, no_onnxruntime):
    monkeypatch.setattr(native, "levels", lambda: ["baseline"])
    monkeypatch.setattr(native, "why_not", lambda network: "the kernel expects something else")
    [(message, _)] = encoded(folder, "numpy")
    assert message.startswith(
        "the native engine cannot run tiny (the kernel expects something else): NumPy runs it"
    )


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
