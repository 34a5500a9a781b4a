"""Documents that match the code: names, links, generated pages, code blocks, no machine paths."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gemel
from gemel.checkpoint.architecture import model_types
from gemel.cli.main import VERBS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def text_of(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_the_generated_pages_are_fresh():
    done = subprocess.run(
        [sys.executable, "tools/docs/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_drawings_are_fresh():
    done = subprocess.run(
        [sys.executable, "tools/docs/drawings.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_table_of_thresholds_is_that_of_its_results():
    done = subprocess.run(
        [sys.executable, "benchmarks/thresholds.py", "--check"], cwd=ROOT, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(gemel.__all__))
def test_every_public_name_is_in_the_page_of_the_python_interface(name):
    assert f"### gemel.{name}\n" in (ROOT / "docs" / "reference" / "python-api.md").read_text(
        encoding="utf-8"
    )


def test_the_page_of_the_python_interface_is_the_same_in_every_run():
    assert " at 0x" not in (ROOT / "docs" / "reference" / "python-api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_in_the_reference(name):
    assert f"## gemel {name}\n" in (ROOT / "docs" / "reference" / "command-line.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("name", sorted(gemel.__all__))
def test_every_public_name_is_in_the_readme(name):
    assert f"`{name}`" in README


def test_every_architecture_is_in_the_table_of_models():
    page = (ROOT / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    missing = [name for name in model_types() if f"| `{name}` " not in page]
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(path):
    targets = [target.split("#")[0] for target in LINK.findall(path.read_text(encoding="utf-8"))]
    broken = [
        target
        for target in targets
        if target and "://" not in target and not (path.parent / target).resolve().exists()
    ]
    assert not broken


def test_every_page_is_in_a_folder_of_its_kind_and_has_a_name_of_its_own():
    docs = ROOT / "docs"
    assert sorted(page.name for page in docs.glob("*.md")) == [
        "README.md",
        "comparison.md",
        "faq.md",
        "migrating.md",
        "tutorial.md",
    ]
    kinds = {page.relative_to(docs).parts[0] for page in docs.glob("*/**/*.md")}
    assert kinds == {"decisions", "explanation", "how-to", "integrations", "reference"}
    names = [page.name for page in docs.rglob("*.md")]
    assert sorted(names) == sorted(set(names))
    assert not list(docs.rglob("*.py"))


def test_the_decisions_are_numbered_without_gaps_and_have_five_parts():
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for part in ("Context.", "Choice.", "Why.", "What we gave up.", "How we would notice it was wrong."):
            assert f"**{part}**" in text, f"{page.name} has no part {part!r}"


@pytest.mark.parametrize("number", range(len(re.findall(r"```python\n", README))))
def test_python_blocks_of_the_readme_compile(number):
    block = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[number]
    compile(block, f"README block {number}", "exec")


def test_the_readme_s_commands_exist():
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL))
    used = set(re.findall(r"^(?:.*\| )?gemel (\w[\w-]*)", shell, flags=re.MULTILINE))
    assert used
    assert used <= set(VERBS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in re.findall(r"^make (\w+)", shell, flags=re.MULTILINE):
        assert f"\n{word}:" in makefile


def test_the_benchmark_table_is_in_the_readme():
    before, _, after = README.partition("<!-- benchmark:summary -->")
    assert before
    assert "<!-- /benchmark:summary -->" in after


def test_no_file_contains_machine_paths():
    # Written in pieces, so that this file does not match.
    roots = [re.escape("/" + name + "/") for name in ("root", "work", "home", "Users")]
    pattern = re.compile(rf"(?<![\w.~\-])(?:{'|'.join(roots)})\w")
    wrong = [
        f"{path.relative_to(ROOT)}: {result.group()}"
        for path in tracked()
        if path.suffix in {".py", ".md", ".toml", ".txt", ".cpp", ".h", ".json", ".yml", ".cfg", ""}
        for result in [pattern.search(text_of(path))]
        if result
    ]
    assert not wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_page_installs_gemel_from_the_package_index(path):
    """It is not there: pages install the folder of the source, or from wheels on disk."""
    lines = path.read_text(encoding="utf-8").splitlines()
    wrong = [
        f"{number}: {line}"
        for number, line in enumerate(lines, start=1)
        if re.search(
            r"\bpip (?:install|download|wheel)\b[^`]*?[\s'\"]gemel(?![\w./-])", line.partition("#")[0]
        )
        and not re.search(r"--no-index|--upgrade|EXTRA", line)
    ]
    assert not wrong


def test_the_page_about_installation_lists_every_extra():
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"test", "test-scale"}
    assert not [extra for extra in extras if f"`{extra}`" not in page]
    used = {
        name
        for path in PAGES
        for found in re.findall(r"'\.\[([\w,-]+)\]'", path.read_text(encoding="utf-8"))
        for name in found.split(",")
    }
    assert used <= set(project["optional-dependencies"])


def test_pip_adds_an_extra_to_an_installed_gemel_without_looking_for_it_elsewhere():
    """What errors about a missing extra advise; nothing is installed here."""
    pytest.importorskip("pip")
    command = ["install", "--dry-run", "--no-index", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *command, "gemel[hub]"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "already satisfied: gemel[hub]" in done.stdout
