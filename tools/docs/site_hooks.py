"""Hooks of mkdocs: pages from outside of docs, and a navigation that lists whole folders.

Pages link to files as they are in the repository. The hooks change each link to the location of its target in the site;
a link to a file that is not a page of the site becomes plain text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXTERNAL = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "measured/benchmarks.md",
    "reproduction/README.md": "measured/reproduction.md",
}
SOURCES = {location: source for source, location in EXTERNAL.items()}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
BEFORE_LIST = re.compile(r"^((?![-*#|<>\s]|\d+\.).+)\n(?=[-*] |\d+\. )", re.MULTILINE)
"""A paragraph followed directly by a list; mkdocs needs an empty line between them."""
PICTURES = {".svg", ".png"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation with the pages of `FOLDER/*` that it does not list; mkdocs reports pages that do not exist."""
    items = config.nav or []
    config.nav = _expanded(items, set(_targets(items)))
    return config


def _targets(items: list[Any]) -> Iterator[str]:
    for item in items:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        yield from _targets(target) if isinstance(target, list) else [target]


def _expanded(items: list[Any], named: set[str]) -> list[Any]:
    expanded: list[Any] = []
    for item in items:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(target, list):
            expanded.append({next(iter(item)): _expanded(target, named)})
        elif target.endswith("/*"):
            pages = [page for page in _pages(target[:-2]) if page not in named]
            expanded += [{next(iter(item)): pages}] if isinstance(item, dict) else pages
        else:
            expanded.append(item)
    return expanded


def _pages(folder: str) -> list[str]:
    return sorted(page.relative_to(DOCS).as_posix() for page in (DOCS / folder).glob("*.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs, and the pictures that they show."""
    for source, location in EXTERNAL.items():
        path = ROOT / source
        if not path.exists():
            continue
        files.append(File.generated(config, location, abs_src_path=str(path)))
        for _, _, target in LINK.findall(path.read_text(encoding="utf-8")):
            picture = (path.parent / target).resolve()
            if picture.suffix in PICTURES and picture.is_file() and _in_site(picture) is None:
                name = f"outside/{picture.relative_to(ROOT).as_posix()}"
                if files.get_file_from_path(name) is None:
                    files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links to those of the site; code blocks stay unchanged."""
    uri = page.file.src_uri
    source = ROOT / SOURCES[uri] if uri in SOURCES else DOCS / uri
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    for at in range(0, len(parts), 2):
        parts[at] = LINK.sub(lambda result: _site_link(result, source, uri, files), parts[at])
        parts[at] = BEFORE_LIST.sub(r"\1\n\n", parts[at])
    return "".join(parts)


def _site_link(result: re.Match[str], source: Path, uri: str, files: Files) -> str:
    mark, text, target = result.groups()
    path, _, anchor = target.partition("#")
    if "://" in target or target.startswith(("mailto:", "#")) or not path:
        return result.group()
    real = (source.parent / path).resolve()
    if not real.exists():
        return result.group()  # mkdocs reports it as broken
    location = _in_site(real)
    if location is None and real.suffix in PICTURES:
        location = f"outside/{real.relative_to(ROOT).as_posix()}"
    if location is None or files.get_file_from_path(location) is None:
        return text
    relative = os.path.relpath(location, Path(uri).parent)
    return f"{mark}[{text}]({relative}{'#' + anchor if anchor else ''})"


def _in_site(path: Path) -> str | None:
    """The location of a file of the repository in the site."""
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT).as_posix()
    if name in EXTERNAL:
        return EXTERNAL[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else None
