"""The site is built, without a warning and without asking another address for anything."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")

pytestmark = pytest.mark.skipif(find_spec("material") is None, reason="needs pip install mkdocs-material")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site):
    pages = [
        page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md") if page.name != "README.md"
    ]
    assert not [page for page in pages if not (site / page.with_suffix(".html")).is_file()]
    assert (site / "index.html").is_file()


def test_pages_from_outside_of_docs_are_in_the_site(site):
    for name in (
        "project/architecture",
        "project/contributing",
        "measured/benchmarks",
        "measured/reproduction",
    ):
        assert (site / f"{name}.html").is_file()


def test_no_page_loads_anything_from_another_address(site):
    for page in site.rglob("*.html"):
        assert not LOADED.findall(page.read_text(encoding="utf-8")), page


def test_no_script_of_the_docs_is_in_the_site(site):
    assert not list(site.rglob("*.py"))
