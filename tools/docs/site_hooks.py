"""What mkdocs does besides: pages from outside of docs, and a navigation of the pages that are there.

A link in a page is written as it is in the repository. Here it is turned to where its target stands in the site; a
link to a file that is no page of the site becomes plain text.
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
BROUGHT = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "measured/benchmarks.md",
    "reproduction/README.md": "measured/reproduction.md",
}
HOMES = {place: source for source, place in BROUGHT.items()}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
BEFORE_LIST = re.compile(r"^((?![-*#|<>\s]|\d+\.).+)\n(?=[-*] |\d+\. )", re.MULTILINE)
"""A paragraph with a list right below it; mkdocs wants an empty line between them, other readers do not."""
PICTURES = {".svg", ".png"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation without the pages that are not there, and with the pages of `FOLDER/*` that it does not name."""
    items = config.nav or []
    config.nav = _present(items, set(_targets(items)))
    return config


def _targets(items: list[Any]) -> Iterator[str]:
    for item in items:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        yield from _targets(target) if isinstance(target, list) else [target]


def _present(items: list[Any], named: set[str]) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(target, list):
            kept.append({next(iter(item)): _present(target, named)})
        elif target.endswith("/*"):
            pages = [page for page in _pages(target[:-2]) if page not in named]
            kept += [{next(iter(item)): pages}] if isinstance(item, dict) else pages
        elif (DOCS / target).exists() or (target in HOMES and (ROOT / HOMES[target]).exists()):
            kept.append(item)
    return kept


def _pages(folder: str) -> list[str]:
    return sorted(page.relative_to(DOCS).as_posix() for page in (DOCS / folder).glob("*.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages from outside, and the pictures that they show."""
    for source, place in BROUGHT.items():
        path = ROOT / source
        if not path.exists():
            continue
        files.append(File.generated(config, place, abs_src_path=str(path)))
        for _, _, target in LINK.findall(path.read_text(encoding="utf-8")):
            picture = (path.parent / target).resolve()
            if picture.suffix in PICTURES and picture.is_file() and _in_site(picture) is None:
                name = f"outside/{picture.relative_to(ROOT).as_posix()}"
                if files.get_file_from_path(name) is None:
                    files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site needs them; blocks of code are left alone."""
    uri = page.file.src_uri
    source = ROOT / HOMES[uri] if uri in HOMES else DOCS / uri
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    for at in range(0, len(parts), 2):
        parts[at] = LINK.sub(lambda found: _turned(found, source, uri, files), parts[at])
        parts[at] = BEFORE_LIST.sub(r"\1\n\n", parts[at])
    return "".join(parts)


def _turned(found: re.Match[str], source: Path, uri: str, files: Files) -> str:
    mark, text, target = found.groups()
    path, _, anchor = target.partition("#")
    if "://" in target or target.startswith(("mailto:", "#")) or not path:
        return found.group()
    real = (source.parent / path).resolve()
    if not real.exists():
        return found.group()  # mkdocs says that it is broken
    place = _in_site(real)
    if place is None and real.suffix in PICTURES:
        place = f"outside/{real.relative_to(ROOT).as_posix()}"
    if place is None or files.get_file_from_path(place) is None:
        return text
    relative = os.path.relpath(place, Path(uri).parent)
    return f"{mark}[{text}]({relative}{'#' + anchor if anchor else ''})"


def _in_site(path: Path) -> str | None:
    """Where a file of the repository stands in the site."""
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT).as_posix()
    if name in BROUGHT:
        return BROUGHT[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else None
