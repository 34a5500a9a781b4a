"""Every code block in the docs runs, or states why it does not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doc_blocks import FENCE, RUNNABLE, Block, Story, alike, read_story, run_story
from doc_samples import MODEL
from gemel.checkpoint.cache import cached_folders
from tiny import tiny_bert

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
ELSEWHERE = {
    "docs/reference/serve-api.md": "tools/docs/serve_api.py asks a real server all of it when it writes the page",
    "docs/how-to/serve.md": "tests/serve/test_process.py and tests/serve/test_nginx.py start servers",
    "docs/reference/server-page.md": "tests/serve/test_page.py starts a server and a browser",
    "docs/how-to/index-on-postgres.md": "tests/index/test_postgres.py starts a database",
}
"""Pages whose blocks something else runs."""
LANGUAGES = {*RUNNABLE, "text", "json", "ini", "nginx", "sql", "toml", "html", "yaml", "dockerfile"}
PAGES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.relative_to(ROOT).as_posix() not in ELSEWHERE
]
SECONDS = 1200 if os.environ.get("GEMEL_SLOW_DOCS") else 250
STORIES = [page for page in PAGES if any(block.runs for block in read_story(page).blocks)]


QUICK = {
    "docs/tutorial.md",
    "docs/reference/semantic-index.md",
    "docs/migrating.md",
    "docs/how-to/choose-a-threshold.md",
}
"""Pages whose blocks are part of every run; `make test-slow` runs those of all others."""


def comments(page):
    return page if name(page) in QUICK else pytest.param(page, marks=pytest.mark.slow)


def name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """Random numbers with the width of the default model: what most pages run on, under its name."""
    folder = tmp_path_factory.mktemp("models") / "small"
    return tiny_bert(folder, layers=4, width=384, heads=12, max_length=256, max_positions=512)


def run_page(page, folder, small_model):
    """Pages that show what was printed get the real model, if it was fetched before."""
    shows = any(block.output is not None for block in read_story(page).blocks)
    real = cached_folders().get(MODEL) if shows else None
    cache = folder / "cache" / "gemel"
    skip = shutil.ignore_patterns(".gemel")
    shutil.copytree(real or small_model, cache / "models" / MODEL, ignore=skip)
    (folder / "work").mkdir()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GEMEL_") or "DOCS" in key},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_CACHE_HOME": str(cache.parent),
        "GEMEL_OFFLINE": "1",
        "GEMEL_DOCS_REAL_MODEL": "1" if real else "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "100",
    }
    return subprocess.run(
        [sys.executable, str(TESTS / "support" / "doc_blocks.py"), str(page)],
        cwd=folder / "work",
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=SECONDS,
    )


@pytest.mark.timeout(SECONDS + 50)
@pytest.mark.parametrize("page", [comments(page) for page in STORIES], ids=map(name, STORIES))
def test_the_blocks_of_a_page_run(page, tmp_path, small_model):
    if "\ncurl " in page.read_text(encoding="utf-8") and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = run_page(page, tmp_path, small_model)
    assert done.returncode == 0, done.stderr


def test_the_python_blocks_of_the_readme_run(tmp_path, small_model):
    blocks = [block for block in read_story(ROOT / "README.md").blocks if block.language == "python"]
    page = page_of(tmp_path, "\n".join(f"```python\n{block.code}```" for block in blocks))
    done = run_page(page, tmp_path, small_model)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_block_says_its_language(page):
    """So that none is skipped; a block that is not meant to run is `text`."""
    wrong = [
        f"{block.line}: {block.language!r}"
        for block in read_story(page).blocks
        if block.language not in LANGUAGES
    ]
    assert not wrong


def page_of(folder, text):
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_blocks_carry_the_comments_before_them(tmp_path):
    first = "<!-- given: a, b -->\n<!-- not run: no GPU -->\n\n```sh\nx\n```\n"
    text = first + "\n```python\ny\n```\n<!-- output -->\n```text\n1\n```\n"
    story = read_story(page_of(tmp_path, text))
    assert story.given == ["a", "b"]
    assert story.blocks == [Block(4, "sh", "x\n", not_run="no GPU"), Block(8, "python", "y\n", output="1\n")]
    assert not story.blocks[0].runs
    assert story.blocks[1].runs


def test_a_block_that_fails_is_named_by_its_line(tmp_path):
    story = read_story(page_of(tmp_path, "# A\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n"))
    assert "page.md:7" in run_story(story, "page.md", {}, compare=True)
    assert not run_story(Story(story.blocks[:1], []), "page.md", {}, compare=True)
    assert "exit 3" in run_story(Story([Block(1, "sh", "exit 3\n")], []), "page.md", {}, compare=True)


def test_shown_output_is_compared_up_to_the_last_digits():
    assert alike("score 0.667\n", "score   0.668")
    assert not alike("score 0.667", "score 0.767")
    assert not alike("score 0.667", "points 0.667")
    block = Block(1, "python", "print(1.5)\n", output="2.5\n")
    assert "shown" in run_story(Story([block], []), "page.md", {}, compare=True)
    assert not run_story(Story([block], []), "page.md", {}, compare=False)


def test_every_fence_is_seen(tmp_path):
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    fences = [line for line in lines if FENCE.match(line)]
    assert len(fences) == 2 * len(read_story(ROOT / "README.md").blocks)
