"""`read_documents`: the files of a folder as texts that name their page or heading, for a search over them.

A PDF becomes one document per page; Markdown, HTML and Word files become one per heading; plain text is one document.
Files come from anywhere: one that cannot be read is reported and left out, and never ends the work.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemel.errors import InputError, MissingExtra
from gemel.files.document_formats import FileBytes, FileSection, one_line, read_content
from gemel.files.records import check_encoding, default_encoding
from gemel.options import parse_bytes
from gemel.types import ShownResult

DOCUMENT_GLOB = "**/*.{md,markdown,html,htm,txt,pdf,docx}"

FILE_FIELDS: Mapping[str, Literal["text", "int"]] = {
    "path": "text",
    "title": "text",
    "page": "int",
    "heading": "text",
    "section": "int",
    "file_digest": "text",
}
"""The fields of a `FileDocument` in an index, with their types."""

_READING = "1"  # of the rules below; another one reads unchanged files again

_MAX_SIZE = "50MB"

_PATTERNS = 1_000  # of one glob with braces

_LONGEST_ID = 1_000  # bytes of a path with its page or heading


@dataclass(frozen=True)
class FileDocument(ShownResult):
    """One page or section of a file; `Index.add` takes them."""

    id: str
    """The path, with `#page=3` or `#heading`: the same in every run."""
    text: str
    path: str
    """From the folder's own name on: notes/2024/plan.md."""
    title: str
    """That the file has inside, else its name."""
    page: int | None
    """Of a PDF, from 1."""
    heading: str | None
    """With those above it: Install > Linux. None: before the first one, or a file without headings."""
    section: int
    """From 1, in the order of the file."""
    file_digest: str
    """Of the file's content, and how many documents it became: equal if the file has not changed."""

    @property
    def fields(self) -> dict[str, str | int | None]:
        """What an index keeps beside id and text."""
        return {name: getattr(self, name) for name in FILE_FIELDS}


@dataclass(frozen=True)
class SkippedFile(ShownResult):
    """A file, or a page of one, that could not be read."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class FoundFile:
    """A file to read."""

    path: str
    """As `FileDocument.path` has it."""
    file: Path


def read_documents(
    source: str | Path,
    *,
    glob: str = DOCUMENT_GLOB,
    max_size: int | str = _MAX_SIZE,
    encoding: str | None = None,
    on_skip: Callable[[SkippedFile], None] | None = None,
) -> DocumentFiles:
    """The pages and sections of the files of a folder, or of one file, read one after the other.

    glob: which files, with `**`, `*`, `?`, `[a-z]` and `{md,pdf}`; hidden files and folders never.
    max_size: a larger file is left out. encoding: of text files, as Python calls it. None: UTF-8, or what HTML says.
    on_skip: called for each file that cannot be read; `skipped` lists them, too. PDF, Word, HTML and Markdown need
    the extra `files`.
    """
    return DocumentFiles(source, glob=glob, max_size=max_size, encoding=encoding, on_skip=on_skip)


class DocumentFiles:
    """An iterator of `FileDocument`. `files` are those found, `skipped` those that could not be read so far."""

    def __init__(
        self,
        source: str | Path,
        *,
        glob: str = DOCUMENT_GLOB,
        max_size: int | str = _MAX_SIZE,
        encoding: str | None = None,
        on_skip: Callable[[SkippedFile], None] | None = None,
    ) -> None:
        self.source = Path(source)
        self.root = self.source.resolve().name
        """What every path begins with: the name of the folder, or of the file."""
        self.skipped: list[SkippedFile] = []
        self.read = 0
        """Files that were read so far, with or without text."""
        self._max = parse_bytes(max_size)
        self._encoding = None if encoding is None else check_encoding(encoding)
        if encoding is None and default_encoding() != "utf-8":
            self._encoding = default_encoding()
        self._on_skip = on_skip
        self._missing: set[str] = set()
        self.files: list[FoundFile] = list(self._found(glob))
        self._documents = (each for _, documents in self.by_file() for each in documents or ())

    def __iter__(self) -> Iterator[FileDocument]:
        return self._documents

    def __next__(self) -> FileDocument:
        return next(self._documents)

    def __repr__(self) -> str:
        return (
            f"DocumentFiles({str(self.source)!r}, files={len(self.files):,}, skipped={len(self.skipped):,})"
        )

    def by_file(
        self, unchanged: Callable[[str], bool] | None = None
    ) -> Iterator[tuple[str, list[FileDocument] | None]]:
        """The path of each file with its documents; None: it could not be read, or `unchanged(digest)` is true."""
        for found in self.files:
            try:
                data = _content(found.file, self._max)
                digest = self._digest(found, data)
                if unchanged is not None and unchanged(digest):
                    self.read += 1
                    yield found.path, None
                    continue
                documents = self._read(found, data, digest)
            except MissingExtra as error:
                first = found.file.suffix.lower() not in self._missing
                self._missing.add(found.file.suffix.lower())
                self._skip(found.path, str(error), report=first)  # once is enough
                yield found.path, None
            except InputError as error:
                self._skip(found.path, str(error))
                yield found.path, None
            else:
                self.read += 1
                if not documents:
                    self._skip(found.path, "no text in it")
                yield found.path, documents

    def _digest(self, found: FoundFile, data: bytes) -> str:
        """With the path, so that two equal files are told apart."""
        hashed = hashlib.sha256(f"{_READING}\0{self._encoding}\0{found.path}\0".encode())
        hashed.update(data)
        return hashed.hexdigest()[:24]

    def _skip(self, path: str, reason: str, *, report: bool = True) -> None:
        skipped = SkippedFile(path, reason)
        self.skipped.append(skipped)
        if self._on_skip is not None and report:
            self._on_skip(skipped)

    def _found(self, glob: str) -> Iterator[FoundFile]:
        if not self.source.exists():
            raise InputError(f"no file or folder at {self.source}")
        if not self.source.is_dir():
            yield FoundFile(_label(self.root), self.source)
            return
        pattern = glob_pattern(glob)
        for relative, file in _walk(self.source):
            if pattern.fullmatch(relative):
                yield FoundFile(_label(f"{self.root}/{relative}" if self.root else relative), file)

    def _read(self, found: FoundFile, data: bytes, digest: str) -> list[FileDocument]:
        suffix = found.file.suffix.lower()
        content = read_content(suffix, FileBytes(data, self._encoding, self._max))
        for page, reason in content.bad_pages:
            self._skip(f"{found.path}#page={page}", reason)
        sections = [section for section in content.sections if section.text]
        title, anchors = content.title or found.file.stem, _Anchors()
        return [
            FileDocument(
                id=_id(found.path, section, anchors),
                text=section.text,
                path=found.path,
                title=one_line(title),
                page=section.page,
                heading=" > ".join(section.headings) or None,
                section=number,
                file_digest=f"{digest}-{len(sections)}",
            )
            for number, section in enumerate(sections, 1)
        ]


# Which files.


def glob_pattern(glob: str) -> re.Pattern[str]:
    """What matches paths with / between their parts, whatever the case of their letters."""
    if not glob:
        raise InputError("glob is empty. Write '**/*.md' for all Markdown files")
    alternatives = "|".join(_regex(each) for each in expand_braces(glob))
    try:
        return re.compile(alternatives, re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise InputError(f"glob {glob!r} cannot be read: {error}") from None


def expand_braces(glob: str) -> list[str]:
    """The patterns without braces that `{a,b}` stands for: a{1,2} is a1 and a2."""
    open_at = glob.find("{")
    if open_at < 0:
        if "}" in glob:
            raise InputError(f"glob {glob!r} has a }} without a {{")
        return [glob]
    depth, parts, start = 0, [], open_at + 1
    for position in range(open_at, len(glob)):
        character = glob[position]
        depth += (character == "{") - (character == "}")
        if (character == "," and depth == 1) or depth == 0:
            parts.append(glob[start:position])
            start = position + 1
        if depth == 0:
            ends = expand_braces(glob[start:])
            inner = [each for part in parts for each in expand_braces(part)]
            if len(inner) * len(ends) > _PATTERNS:
                raise InputError(f"glob {glob[:60]!r} stands for more than {_PATTERNS:,} patterns")
            return [glob[:open_at] + each + end for each in inner for end in ends]
    raise InputError(f"glob {glob!r} has a {{ without a }}")


def _regex(glob: str) -> str:
    """As of a shell: * and ? stay inside of one part of the path, `**/` is any number of folders."""
    glob = re.sub(r"(\*\*/)+", "**/", glob.removeprefix("./"))
    out = []
    for token in re.findall(r"\*\*/|\*+|\?|\[!?\]?[^\]/]*\]|.", glob, re.DOTALL):
        if token == "**/":
            out.append("(?:.*/)?")
        elif token[0] == "*":
            out.append(".*" if len(token) > 1 else "[^/]*")
        elif token == "?":
            out.append("[^/]")
        elif token[0] == "[" and len(token) > 1:
            inside = token[1:-1].replace("\\", r"\\").replace("[", r"\[")
            out.append(f"(?!/)[{'^' + inside[1:] if inside[0] == '!' else inside}]")
        else:
            out.append(re.escape(token))
    return "".join(out)


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files below a folder with their paths from it, sorted. A folder that links lead to twice is read once."""
    seen: set[tuple[int, int]] = set()
    waiting = [("", folder)]
    while waiting:
        prefix, current = waiting.pop()
        try:
            facts = current.stat()
            entries = sorted(os.listdir(current))  # noqa: PTH208 - names that are no UTF-8 stay as they are
        except OSError:
            continue  # it vanished, or may not be read
        if (facts.st_dev, facts.st_ino) in seen:
            continue
        seen.add((facts.st_dev, facts.st_ino))
        folders = []
        for name in entries:
            if name.startswith("."):
                continue
            path = current / name
            if path.is_dir():
                folders.append((f"{prefix}{name}/", path))
            else:
                yield prefix + name, path
        waiting += reversed(folders)


def _content(file: Path, most: int) -> bytes:
    try:
        facts = file.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise InputError("no regular file")
        if facts.st_size > most:
            raise InputError(
                f"{facts.st_size / 1e6:,.1f} MB, more than the {most / 1e6:,.1f} MB of max_size (--max-size)"
            )
        with file.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})") from None


class _Anchors:
    """Names of sections in an address, as GitHub makes them: lower case, words joined by hyphens, each one once."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def of(self, section: FileSection) -> str:
        if section.page is not None:
            return f"page={section.page}"
        base = section.anchor or (section.headings[-1] if section.headings else "")
        if not section.anchor:
            base = re.sub(r"[^\w\s-]", "", base.lower())
        base = re.sub(r"\s+", "-", one_line(base))[:80]
        name = base
        while name in self._used:
            self._used[base] += 1
            name = f"{base}-{self._used[base]}"
        self._used[name] = 0
        return name


def _id(path: str, section: FileSection, anchors: _Anchors) -> str:
    anchor = anchors.of(section)
    made = f"{path}#{anchor}" if anchor else path
    if len(made.encode("utf-8")) > _LONGEST_ID:
        raise InputError(f"its path with the heading has more than {_LONGEST_ID:,} bytes. Move or rename it")
    return made


def _label(path: str) -> str:
    """A name of the file system as a text; bytes that are no UTF-8 are replaced."""
    return path.replace(os.sep, "/").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
