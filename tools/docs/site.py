"""Build the documentation as a site: `python tools/docs/site.py`, which `make site` runs, writes build/site.

The generator (Zensical, decision 30) only turns pages into HTML. What gemel needs besides is here, so that another
generator can take its place: pages from outside of docs, a navigation that lists whole folders, links between files of
the repository, and the checks. A page that the navigation does not list, a link that leads nowhere and anything that
a page would load from another address stop the build.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETTINGS = ROOT / "tools" / "docs" / "site.yml"
THEME = ROOT / "tools" / "docs" / "theme"
LOGO = ROOT / "src" / "gemel" / "serve" / "page" / "favicon.svg"
HOME = "index.md"
EXTERNAL = {
    "docs/README.md": HOME,
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "measured/benchmarks.md",
    "reproduction/README.md": "measured/reproduction.md",
}
"""Files of the repository that are pages under another name."""
UNLISTED = {"project/readme.md"}
"""Pages that need no line in the navigation."""
REPOSITORY = "GEMEL_DOCS_REPOSITORY"
"""Variable with the address of the repository, such as https://example.org/team/gemel: pages get links to edit them."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
SOURCE = re.compile(r"""(<(?:img|source|a)\b[^>]*?\b(?:src|srcset|href)=")([^"]+)(")""")
BEFORE_LIST = re.compile(r"^((?![-*#|<>\s]|\d+\.).+)\n(?=[-*] |\d+\. )", re.MULTILINE)
"""A paragraph followed directly by a list; Python-Markdown needs an empty line between them."""
BARS = re.compile(r"!\[[^\]]*\]\((pictures/speed-bars\.svg)\)")
PICTURES = {".svg", ".png"}


class SiteError(Exception):
    """The site cannot be built as it is; one line per problem."""


def version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def build(out: Path, work: Path, *, several: bool = False) -> None:
    """Write the site to `out`. `work` is emptied and holds the pages as the generator reads them."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    pages = _stage(work / "docs")
    settings = _settings(work, pages, several=several)
    (work / "mkdocs.yml").write_text(json.dumps(settings, indent=1), encoding="utf-8")  # JSON is YAML
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--strict",
        "--config-file",
        str(work / "mkdocs.yml"),
    ]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)  # it colors letters even in a file
        raise SiteError(said.partition("Traceback")[0].strip())
    shutil.copytree(work / "site", out)
    if problems := check(out):
        raise SiteError("\n".join(problems))


# Pages as the generator reads them


def _stage(folder: Path) -> set[str]:
    """Copy all pages and pictures, with the links of the site; the names of the pages."""
    sources = {source: ROOT / source for source in EXTERNAL if (ROOT / source).exists()}
    for path in DOCS.rglob("*"):
        if path.is_file() and path.suffix in {".md", *PICTURES}:
            sources[path.relative_to(ROOT).as_posix()] = path
    sources.update(_outside_pictures(sources))
    known = {_in_site(path) for path in sources.values()}
    for path in sources.values():
        name = _in_site(path)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(_page(path, name, known), encoding="utf-8")
        else:
            shutil.copyfile(path, target)
    shutil.copytree(THEME, folder / "theme")
    shutil.copyfile(LOGO, folder / "theme" / "logo.svg")
    return {name for name in known if name.endswith(".md")}


def _outside_pictures(pages: dict[str, Path]) -> dict[str, Path]:
    """Pictures of pages that are not in docs."""
    found = {}
    for path in pages.values():
        if path.suffix == ".md":
            for _, _, target in LINK.findall(path.read_text(encoding="utf-8")):
                picture = (path.parent / target).resolve()
                if picture.suffix in PICTURES and picture.is_file() and not picture.is_relative_to(DOCS):
                    found[picture.relative_to(ROOT).as_posix()] = picture
    return found


def _in_site(path: Path) -> str:
    """The location of a file of the repository in the site."""
    name = path.relative_to(ROOT).as_posix()
    if name in EXTERNAL:
        return EXTERNAL[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else f"outside/{name}"


def _page(path: Path, name: str, known: set[str]) -> str:
    """The page with the links of the site; code blocks stay unchanged."""
    parts = re.split(r"(^```.*?^```$)", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for at in range(0, len(parts), 2):
        parts[at] = LINK.sub(lambda link: _markdown_link(link, path, name, known), parts[at])
        parts[at] = SOURCE.sub(lambda link: _html_link(link, path, name, known), parts[at])
        parts[at] = BEFORE_LIST.sub(r"\1\n\n", parts[at])
    head = "---\nhide: [navigation, toc, path, footer]\n---\n\n" if name == HOME else ""
    return head + BARS.sub(_inline, "".join(parts)) + _edit_link(path)


def _edit_link(path: Path) -> str:
    """Not by the generator, whose theme would ask the host of the repository for stars and forks."""
    repository = os.environ.get(REPOSITORY, "").rstrip("/")
    address = f"{repository}/edit/main/{path.relative_to(ROOT).as_posix()}"
    return f"\n\n[Edit this page]({address}){{ .edit-page }}\n" if repository else ""


def _inline(picture: re.Match[str]) -> str:
    """The drawing and that for phones as parts of the page, which have the colors of the page."""
    wide = picture.group(1)
    drawings = (
        (DOCS / name).read_text(encoding="utf-8") for name in (wide, wide.replace(".svg", "-phone.svg"))
    )
    return "".join(
        svg.replace(re.findall(r"<style>svg.*?</style>", svg)[0], "").replace("\n", "") for svg in drawings
    )


def _markdown_link(link: re.Match[str], path: Path, name: str, known: set[str]) -> str:
    mark, text, target = link.groups()
    location = _location(target, path, name, known)
    return text if location is None else f"{mark}[{text}]({location})"


def _html_link(link: re.Match[str], path: Path, name: str, known: set[str]) -> str:
    start, target, end = link.groups()
    location = _location(target, path, name, known) or target
    return f"{start}{location.replace('.md', '.html') if '://' not in location else location}{end}"


def _location(target: str, path: Path, name: str, known: set[str]) -> str | None:
    """The target of a link as the site has it; None for a file of the repository that is not in the site."""
    file, _, anchor = target.partition("#")
    if "://" in target or target.startswith("mailto:") or not file:
        return target
    real = (path.parent / file).resolve()
    if not real.exists() or not real.is_relative_to(ROOT):
        return target  # the check reports it as broken
    location = _in_site(real)
    if location not in known:
        return None
    return os.path.relpath(location, Path(name).parent) + (f"#{anchor}" if anchor else "")


# Settings of the generator


def _settings(work: Path, pages: set[str], *, several: bool) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    items = settings["nav"]
    named = set(_targets(items))
    settings["nav"] = _expanded(items, named, pages)
    listed = set(_targets(settings["nav"]))
    problems = [f"the navigation lists {name}, which does not exist" for name in sorted(listed - pages)]
    problems += [f"{name} is not in the navigation" for name in sorted(pages - listed - UNLISTED)]
    if problems:
        raise SiteError("\n".join(problems))
    settings |= {"docs_dir": "docs", "site_dir": "site", "use_directory_urls": False}
    if several:  # the header has a list of versions instead of one in its title
        settings["extra"]["version"] = {"provider": "mike"}
    else:
        settings["site_name"] += f" {version()}"
    return settings


def _targets(items: list[Any]) -> Iterator[str]:
    for item in items:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        yield from _targets(target) if isinstance(target, list) else [target]


def _expanded(items: list[Any], named: set[str], pages: set[str]) -> list[Any]:
    """The navigation with `FOLDER/*` replaced by the pages of that folder that are not named."""
    expanded: list[Any] = []
    for item in items:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(target, list):
            expanded.append({next(iter(item)): _expanded(target, named, pages)})
        elif target.endswith("/*"):
            folder = target.removesuffix("*")
            rest = sorted(page for page in pages if page.startswith(folder) and page not in named)
            expanded += [{next(iter(item)): rest}] if isinstance(item, dict) else rest
        else:
            expanded.append(item)
    return expanded


# Checks of what was written


class _Links(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for value in (values.get("id"), values.get("name")) if value}
        target = values.get("src") or values.get("href") or values.get("data")
        if target and tag in {"a", "area"}:
            self.links.add(target)
        elif target and values.get("rel") not in {"canonical", "edit"}:
            self.loads.add(target)


def check(site: Path) -> list[str]:
    """Links and anchors of all pages that lead nowhere, and what would be loaded from another address."""
    pages = {path: _Links(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        if name == "404.html":  # written for the root of a server
            continue
        for target in sorted(page.links | page.loads):
            if re.match(r"(?:[a-z+]+:)?//|mailto:|data:|javascript:", target):
                if target in page.loads and not target.startswith("data:"):
                    problems.append(f"{name} loads {target}")
                continue
            file, _, anchor = target.partition("#")
            real = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
            real = real / "index.html" if real.is_dir() else real
            if not real.exists():
                problems.append(f"{name} links to {target}, which does not exist")
            elif anchor and real in pages and unquote(anchor) not in pages[real].anchors:
                problems.append(f"{name} links to {target}, but that page has no such heading")
    return problems


# Several versions


def add_version(folder: Path, work: Path) -> None:
    """Build the site of this version in a folder of its own below `folder`, and list it in versions.json.

    The layout is that of the tool mike, which the theme reads: each site offers all versions in its header.
    """
    build(folder / version(), work, several=True)
    listed = folder / "versions.json"
    names = (
        {entry["version"] for entry in json.loads(listed.read_text(encoding="utf-8"))}
        if listed.exists()
        else set()
    )
    order = sorted(names | {version()}, key=_parts, reverse=True)
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if name == order[0] else []} for name in order
    ]
    listed.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    target = f"{order[0]}/index.html"
    (folder / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>gemel</title>'
        f'<meta http-equiv="refresh" content="0; url={target}">'
        f'<a href="{target}">gemel {order[0]}</a>\n',
        encoding="utf-8",
    )


def _parts(name: str) -> list[tuple[int, str]]:
    """For an order in which 0.10 follows 0.9, and 1.0rc1 comes before 1.0."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|[a-z]+", name)] + [
        (0, "")
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="the folder of the site")
    parser.add_argument(
        "--versions", type=Path, help="a folder with one site per version; adds this version to it"
    )
    chosen = parser.parse_args(arguments)
    try:
        if chosen.versions:
            add_version(chosen.versions, ROOT / "build" / "site-pages")
        else:
            build(chosen.out, ROOT / "build" / "site-pages")
    except SiteError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
