"""The Python blocks of a page about a framework, run by the tests of that framework whatever the page says of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from doc_blocks import alike, read_story, run_block
from doc_samples import MODEL
from gemel.checkpoint.cache import cached_folders
from tiny import tiny_bert

DOCS = Path(__file__).parent.parent / "docs" / "integrations"


def run_page(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, with the real model if it was fetched before: then what is shown is what is printed."""
    real = cached_folders().get(MODEL)
    place = folder / "cache" / "models" / MODEL
    if real is None:
        tiny_bert(place)
    else:
        shutil.copytree(real, place, ignore=shutil.ignore_patterns(".gemel"))
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    monkeypatch.setenv("GEMEL_CACHE", str(folder / "cache"))
    monkeypatch.setenv("GEMEL_OFFLINE", "1")
    blocks = [block for block in read_story(DOCS / name).blocks if block.language == "python"]
    assert blocks
    names = {"__name__": "__main__"}
    for block in blocks:
        printed, wrong = run_block(block, name, names)
        assert not wrong, f"{name}:{block.line}\n{wrong}"
        if real is not None and block.output is not None:
            assert alike(printed, block.output), f"{name}:{block.line}\n{printed}"
