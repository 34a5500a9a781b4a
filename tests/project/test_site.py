"""The site is built, without a warning and without asking another address for anything."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")

pytestmark = pytest.mark.skipif(find_spec("material") is None, reason="needs pip install mkdocs-material")


def build(root, folder):
    """As `make site` builds it. Not with `--quiet`: it hides warnings from `--strict` too."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def copy(tmp_path):
    """The repository without what was built in it, to be changed; pages link to files of all folders."""
    skip = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.so", "*.egg-info", "golden")
    return shutil.copytree(ROOT, tmp_path / "copy", ignore=skip)


def test_a_page_that_the_navigation_does_not_list_fails_the_build(copy, tmp_path):
    (copy / "docs" / "forgotten.md").write_text("# Forgotten\n", encoding="utf-8")
    done = build(copy, tmp_path / "site")
    assert done.returncode == 1
    assert "forgotten.md" in done.stderr
    assert "Aborted with 1 warning" in done.stdout + done.stderr


def test_a_page_of_the_navigation_that_does_not_exist_fails_the_build(copy, tmp_path):
    settings = copy / "mkdocs.yml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("tutorial.md", "tutorials.md"), encoding="utf-8")
    done = build(copy, tmp_path / "site")
    assert done.returncode == 1
    assert "A reference to 'tutorials.md' is included in the 'nav'" in done.stderr


def test_a_link_that_leads_nowhere_fails_the_build(copy, tmp_path):
    with (copy / "docs" / "tutorial.md").open("a", encoding="utf-8") as page:
        page.write("\n[the lost page](how-to/lost.md)\n")
    done = build(copy, tmp_path / "site")
    assert done.returncode == 1
    assert "how-to/lost.md" in done.stderr


def test_make_builds_the_site_strictly_in_an_environment_with_what_the_tests_use():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\nsite: ")[2].partition("\n\n")[0]
    assert "mkdocs build --strict" in recipe
    assert "$(VENV)" not in recipe
    needs = (ROOT / "tools" / "docs" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {line for line in needs if not line.startswith("#")} <= set(
        project["optional-dependencies"]["test"]
    )


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
