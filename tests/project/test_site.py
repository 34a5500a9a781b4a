"""The site is built strictly, without asking another address for anything, and its parts fit its sources."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from page_checks import CONTRAST

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
needs_generator = pytest.mark.skipif(
    find_spec("zensical") is None, reason="needs pip install --requirement tools/docs/requirements.txt"
)


def build(root, *arguments, **environment):
    """As `make site` builds it."""
    return subprocess.run(
        [sys.executable, "tools/docs/site.py", *map(str, arguments)],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT, "--out", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def copy(tmp_path):
    """The repository without what was built in it, to be changed; pages link to files of all folders."""
    skip = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.so", "*.egg-info", "golden")
    return shutil.copytree(ROOT, tmp_path / "copy", ignore=skip)


@needs_generator
def test_a_page_that_the_navigation_does_not_list_fails_the_build(copy):
    (copy / "docs" / "forgotten.md").write_text("# Forgotten\n", encoding="utf-8")
    done = build(copy)
    assert done.returncode == 1
    assert done.stderr == "forgotten.md is not in the navigation\n"


@needs_generator
def test_a_page_of_the_navigation_that_does_not_exist_fails_the_build(copy):
    settings = copy / "tools" / "docs" / "site.yml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("faq.md", "questions.md"), encoding="utf-8")
    done = build(copy)
    assert done.returncode == 1
    assert "the navigation lists questions.md, which does not exist\n" in done.stderr


@needs_generator
def test_links_that_lead_nowhere_fail_the_build(copy):
    with (copy / "docs" / "tutorial.md").open("a", encoding="utf-8") as page:
        page.write("\n[the lost page](how-to/lost.md), [a heading](faq.md#no-such-heading)\n")
    done = build(copy)
    assert done.returncode == 1
    assert "how-to/lost.md" in done.stderr
    assert "faq.md#no-such-heading" in done.stderr


@pytest.fixture(scope="module")
def program():
    """tools/docs/site.py, not imported by its name, which is that of a module of Python."""
    pytest.importorskip("yaml")
    spec = spec_from_file_location("docs_site", ROOT / "tools" / "docs" / "site.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_and_loads_are_checked_in_the_pages_that_were_written(tmp_path, program):
    (tmp_path / "b.html").write_text('<h2 id="there">b</h2>', encoding="utf-8")
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a><a href="https://example.org">4</a>'
        '<script src="https://example.org/x.js"></script><img src="data:image/png;base64,AA">',
        encoding="utf-8",
    )
    assert program.check(tmp_path) == [
        "a.html links to b.html#gone, but that page has no such heading",
        "a.html links to c.html, which does not exist",
        "a.html loads https://example.org/x.js",
    ]


def test_make_builds_the_site_in_an_environment_with_the_generator_that_the_tests_use():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\nsite: ")[2].partition("\n\n")[0]
    assert "tools/docs/site.py" in recipe
    assert "$(VENV)" not in recipe
    lines = (ROOT / "tools" / "docs" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    needs = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in needs)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert needs[0].startswith("zensical==")
    assert needs[0] in project["optional-dependencies"]["test"]


@needs_generator
def test_every_page_is_in_the_site(site):
    pages = [
        page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md") if page.name != "README.md"
    ]
    assert not [page for page in pages if not (site / page.with_suffix(".html")).is_file()]
    for name in ("index", "project/architecture", "project/contributing", "measured/benchmarks"):
        assert (site / f"{name}.html").is_file()
    assert not list(site.rglob("*.py"))


@needs_generator
def test_the_first_page_shows_a_terminal_bars_and_the_version(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"gemel {project['version']}" in home
    assert "pictures/terminal.svg" in home
    assert 'class="bars speed-bars"' in home
    assert "Edit this page" not in home


@needs_generator
def test_search_has_its_index_and_needs_no_other_host(site):
    assert (site / "search.js").read_text(encoding="utf-8").startswith("var __index = ")
    home = (site / "index.html").read_text(encoding="utf-8")
    assert "theme/iframe-worker.js" in home
    assert "unpkg" not in home


def test_pages_have_a_link_to_edit_them_where_a_repository_is_named(tmp_path, program, monkeypatch):
    monkeypatch.setenv("GEMEL_DOCS_REPOSITORY", "https://example.org/team/gemel/")
    program._stage(tmp_path / "docs")
    for page, source in (
        ("index", "docs/README.md"),
        ("project/security", "SECURITY.md"),
        ("faq", "docs/faq.md"),
    ):
        text = (tmp_path / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert f"(https://example.org/team/gemel/edit/main/{source})" in text


def test_several_versions_are_listed_newest_first(tmp_path, program, monkeypatch):
    monkeypatch.setattr(program, "build", lambda out, *_, **__: out.mkdir(parents=True))
    for name in ("0.9.0", "0.10.0", "0.10.0rc1"):
        monkeypatch.setattr(program, "version", lambda name=name: name)
        program.add_version(tmp_path, tmp_path / "work")
    listed = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert [entry["version"] for entry in listed] == ["0.10.0", "0.10.0rc1", "0.9.0"]
    assert [entry["aliases"] for entry in listed] == [["latest"], [], []]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text(encoding="utf-8")


# In a browser


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs an installed Chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as running:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = running.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def reader(site, browser):
    """A function that opens a page of the site from the disk; a complaint or a request to a host fails the test."""
    contexts, complaints = [], []

    def read(name, **settings):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
        page.on(
            "request",
            lambda sent: complaints.append(sent.url) if sent.url.startswith(("http:", "https:")) else None,
        )
        page.goto(f"file://{site}/{name}")
        return page

    yield read
    for context in contexts:
        context.close()
    assert complaints == []


@needs_generator
@pytest.mark.parametrize("width", [1280, 390])
def test_search_finds_pages_without_a_server(reader, width):
    page = reader("faq.html", viewport={"width": width, "height": 844})
    field = page.get_by_role("combobox")
    for _ in range(20):  # the shortcut works once the scripts of the page have started
        page.keyboard.press("Control+k")
        page.wait_for_timeout(500)
        if field.count() and field.is_visible():
            break
    field.fill("threshold")
    hit = page.get_by_role("option", name="Which threshold means").first
    hit.wait_for()
    assert "faq.html" in hit.evaluate("it => it.closest('a')?.href ?? it.querySelector('a').href")


@needs_generator
def test_the_dark_colors_are_remembered(reader):
    page = reader("faq.html", color_scheme="light")
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    assert page.evaluate(scheme) == "default"
    page.locator("label.md-header__button[for^='__palette']:visible").first.click()
    page.wait_for_function(f"{scheme} === 'slate'")
    page.goto(page.url.replace("faq", "comparison"))
    page.wait_for_function(f"{scheme} === 'slate'")


@needs_generator
def test_code_blocks_have_a_button_that_copies_them(reader):
    page = reader("tutorial.html", permissions=["clipboard-read", "clipboard-write"])
    button = page.locator(".md-code__button, .md-clipboard").first
    button.click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.includes('pip install'))")


@needs_generator
@pytest.mark.slow
def test_no_page_is_wider_than_a_phone_or_lacks_a_picture(site, reader):
    page = reader("index.html", viewport={"width": 390, "height": 844}, is_mobile=True)
    wide, broken = [], []
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # written for the root of a server
            continue
        page.goto(f"file://{path}")
        if page.evaluate("Math.max(document.documentElement.scrollWidth, innerWidth)") > 390:
            wide.append(path.name)
        broken += page.evaluate(
            "[...document.images].filter(it => it.complete && !it.naturalWidth).map(it => it.src)"
        )
    assert (wide, broken) == ([], [])


@needs_generator
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "shown"), [(1280, "speed-bars"), (390, "speed-bars-phone")])
def test_the_first_page_is_readable(reader, scheme, width, shown):
    page = reader("index.html", viewport={"width": width, "height": 844}, color_scheme=scheme)
    assert page.locator("svg.bars:visible").get_attribute("class").split()[-1] == shown
    assert page.locator(f"svg.{shown} text").first.bounding_box()["height"] > 10
    pale = [
        text for text in page.evaluate(CONTRAST, 4.5) if "headerlink" not in text
    ]  # shown under the mouse
    assert pale == []


def test_the_pictures_of_the_site_are_small():
    pictures = sorted((ROOT / "docs" / "pictures").glob("site-*.png"))
    assert len(pictures) == 4
    assert all(picture.stat().st_size < 300_000 for picture in pictures)


def test_the_pictures_of_the_first_page_are_fresh():
    done = subprocess.run(
        [sys.executable, "tools/docs/landing.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["terminal.svg", "terminal-phone.svg"])
def test_the_terminal_is_still_for_people_who_prefer_that(name):
    drawing = (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8")
    before, _, after = drawing.partition("@media (prefers-reduced-motion: no-preference)")
    assert "animation:" not in before
    assert "animation:" in after
    assert "<script" not in drawing
