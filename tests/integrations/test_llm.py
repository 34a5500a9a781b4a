"""gemel's models inside llm: by name, in batches, on llm's own command line."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from tests.project.test_docs_blocks import small_model  # noqa: F401 - a fixture

import gemel
from gemel.errors import GemelError
from gemel.integrations import llm as plugin
from integration_pages import run_blocks
from tiny import tiny_bert

SOURCE = Path(__file__).parents[2] / "src"
TEXTS = ["a cat", "hello world", "the rain"]

# the dependencies of llm warn about their own code
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with one model, `tiny`, and an empty home of llm."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    monkeypatch.setenv("GEMEL_OFFLINE", "1")
    monkeypatch.delenv("GEMEL_LLM_MODELS", raising=False)
    return tiny_bert(tmp_path / "cache" / "gemel" / "models" / "tiny")


@pytest.fixture
def llm(cache):
    """llm, with the plugin registered as the entry point would do it."""
    package = pytest.importorskip("llm", reason="llm is not installed")
    from llm.plugins import load_plugins, pm

    load_plugins()
    there = pm.is_registered(plugin)
    if not there:
        pm.register(plugin, "gemel")
    yield package
    if not there:
        pm.unregister(plugin)


def test_a_model_of_the_cache_is_found_by_its_name(llm, cache):
    model = llm.get_embedding_model("gemel/tiny")
    expected = gemel.load(cache).encode(TEXTS)
    assert np.float32(list(model.embed_multi(TEXTS))).tolist() == expected.tolist()
    assert np.float32(model.embed("a cat")).tolist() == expected[0].tolist()
    assert type(model.embed("a cat")[0]) is float


def test_texts_come_in_batches(llm, monkeypatch):
    from gemel.model import Model

    sizes, real = [], Model.encode
    monkeypatch.setattr(Model, "encode", lambda self, texts: sizes.append(len(texts)) or real(self, texts))
    list(llm.get_embedding_model("gemel/tiny").embed_multi(TEXTS, batch_size=2))
    assert sizes == [2, 1]


def test_a_collection_finds_what_is_near(llm):
    import sqlite_utils

    notes = llm.Collection("notes", sqlite_utils.Database(memory=True), model_id="gemel/tiny")
    notes.embed_multi(enumerate(TEXTS), store=True)
    assert notes.model().model_id == "gemel/tiny"
    assert [entry.content for entry in notes.similar("hello world", number=1)] == ["hello world"]


def test_the_command_of_llm_embeds(llm, cache, tmp_path):
    from click.testing import CliRunner
    from llm.cli import cli

    done = CliRunner().invoke(cli, ["embed", "-m", "gemel/tiny", "-c", "a cat"], catch_exceptions=False)
    assert np.float32(json.loads(done.stdout)).tolist() == gemel.load(cache).encode(["a cat"])[0].tolist()
    listed = CliRunner().invoke(cli, ["embed-models", "-q", "gemel"], catch_exceptions=False).stdout
    assert "gemel/all-MiniLM-L6-v2" in listed


def test_folders_and_names_of_the_environment_are_models_too(llm, tmp_path, monkeypatch):
    folder = tiny_bert(tmp_path / "mine", seed=1)
    monkeypatch.setenv("GEMEL_LLM_MODELS", f"{folder}, some/model ,")
    result = llm.get_embedding_model("gemel/mine").embed("a cat")
    assert np.float32(result).tolist() == gemel.load(folder).encode(["a cat"])[0].tolist()
    missing = llm.get_embedding_model("gemel/some/model")
    with pytest.raises(llm.ModelError, match="some/model") as failed:
        missing.embed("a cat")
    assert isinstance(failed.value.__cause__, GemelError)


def test_bytes_are_refused(llm):
    with pytest.raises(ValueError, match="binary"):
        llm.get_embedding_model("gemel/tiny").embed(b"a cat")


def python(code, **variables):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_the_import_is_cheap_and_works_without_any_package():
    code = """
import sys
sys.path = [path for path in sys.path if "site-packages" not in path]
import gemel.integrations.llm as plugin
assert plugin.register_embedding_models
assert not {"pluggy", "numpy", "click"} & set(sys.modules)
"""
    python(code)


def test_models_are_listed_without_loading_llm_or_a_model(cache):
    code = """
import sys
import gemel.integrations.llm as plugin
names = plugin.available_models()
assert "gemel/tiny" in names and "gemel/all-MiniLM-L6-v2" in names
assert not {"llm", "numpy", "onnxruntime", "tokenizers", "torch"} & set(sys.modules)
"""
    python(code, XDG_CACHE_HOME=str(cache.parent.parent.parent))


@pytest.mark.slow
def test_the_blocks_of_the_page_run(tmp_path, small_model, monkeypatch):  # noqa: F811 - the fixture
    pytest.importorskip("llm", reason="llm is not installed")
    if "gemel" not in {point.name for point in entry_points(group="llm")}:
        pytest.skip("gemel was installed without its entry point for llm")
    if not shutil.which("llm", path=str(Path(sys.executable).parent)):
        pytest.skip("the command llm is not next to this Python")
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    run_blocks("llm.md", "llm", tmp_path, small_model)
