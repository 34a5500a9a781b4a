"""What is in a document file: title, and sections or pages with their texts. Markdown, HTML, Word, PDF, plain text.

Each format is read by a library of the extra `files`. Parsers of damaged files raise anything: `read_content` gives
every failure as an InputError that says it in one line.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from gemel.errors import InputError, MissingExtra
from gemel.files.records import check_encoding, likely_encoding

_UNPACKED = 8  # times max_size: what is inside of a .docx may have

_DEPTH = 2_000  # of elements of HTML: the parser's time grows with the square of it


@dataclass(frozen=True)
class FileBytes:
    """A file as the readers below get it."""

    data: bytes
    encoding: str | None
    """That the caller named."""
    max_size: int

    def text(self, *, html: bool = False) -> str:
        """Decoded; an InputError says which encoding it may be."""
        for mark, name in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
            if self.data.startswith(mark):
                return self._decoded(name)
        declared = re.search(rb"charset\s*=\s*[\"']?([\w-]+)", self.data[:2048]) if html else None
        return self._decoded(self.encoding or (declared[1].decode("ascii") if declared else "utf-8"))

    def _decoded(self, encoding: str) -> str:
        try:
            text = self.data.decode(check_encoding(encoding))
        except UnicodeDecodeError as error:
            guess = likely_encoding(self.data[: 2**18])
            hint = f"It looks like {guess}: --encoding {guess}" if guess else "Name it: --encoding"
            raise InputError(f"not {encoding} (at byte {error.start}). {hint}") from None
        if "\0" in text[:4096]:
            raise InputError("binary data, not text")
        return text


@dataclass(frozen=True)
class FileSection:
    """One page, or what is below one heading."""

    text: str
    headings: tuple[str, ...] = ()
    anchor: str | None = None
    """The name that the file itself gives to the place."""
    page: int | None = None


@dataclass(frozen=True)
class FileContent:
    title: str
    """Empty: the file does not say."""
    sections: list[FileSection]
    bad_pages: list[tuple[int, str]] = field(default_factory=list)
    """Pages that could not be read, with the reason."""


def read_content(suffix: str, file: FileBytes) -> FileContent:
    """The content of a file with this suffix; what cannot be read is an InputError, or MissingExtra."""
    reader = _READERS.get(suffix)
    if reader is None:
        known = ", ".join(_READERS)
        raise InputError(
            f"a file {f'of the type {suffix}' if suffix else 'without a suffix'} is not read. Known: {known}"
        )
    with _quiet():
        try:
            return reader(file)
        except (InputError, MissingExtra):
            raise
        except Exception as error:  # of whatever class
            raise InputError(f"damaged, or no {suffix} file ({_first_line(error)})") from error


class _Outline:
    """Blocks of text under headings, in the order of a file, to sections."""

    def __init__(self) -> None:
        self._path: list[tuple[int, str]] = []
        self._anchor: str | None = None
        self._blocks: list[str] = []
        self._sections: list[FileSection] = []
        self.first: str = ""
        """The first heading."""

    def heading(self, level: int, text: str, anchor: str | None = None) -> None:
        """A new section; headings of this level and below it end."""
        text = one_line(text)
        if not text:
            return
        self._close()
        self._path = [each for each in self._path if each[0] < level]
        self._path.append((level, text))
        self._anchor, self.first = anchor, self.first or text

    def block(self, text: str) -> None:
        """A paragraph of the current section."""
        text = clean_text(text)
        if text.startswith("- ") and self._blocks and self._blocks[-1].startswith("- "):
            self._blocks[-1] += f"\n{text}"  # items of a list stay together
        elif text:
            self._blocks.append(text)

    def content(self, title: str) -> FileContent:
        """All sections. One with nothing but its heading is left out, unless the file has nothing else."""
        self._close()
        full = [section for section in self._sections if section.text]
        if not full and self._sections:
            names = dict.fromkeys(section.headings[-1] for section in self._sections if section.headings)
            full = [FileSection("\n\n".join(names))]
        return FileContent(one_line(title) or self.first, full)

    def _close(self) -> None:
        headings = tuple(text for _, text in self._path)
        # The heading is part of the text: it often has the words that a question has.
        text = "\n\n".join([*headings[-1:], *self._blocks]) if self._blocks else ""
        if headings or text:
            self._sections.append(FileSection(text, headings, self._anchor))
        self._blocks, self._anchor = [], None


def _plain(file: FileBytes) -> FileContent:
    return FileContent("", [FileSection(clean_text(file.text()))])


def _pdf(file: FileBytes) -> FileContent:
    try:
        import pypdf
    except ImportError:
        raise MissingExtra("reading .pdf files", "pypdf", "files") from None
    reader = pypdf.PdfReader(BytesIO(file.data))
    if reader.is_encrypted:
        try:
            opened = reader.decrypt("")
        except Exception:  # an unknown method, or one that needs another package
            opened = pypdf.PasswordType.NOT_DECRYPTED
        if opened == pypdf.PasswordType.NOT_DECRYPTED:
            raise InputError("encrypted. Remove its password first")
    sections, bad = [], []
    for number in range(1, len(reader.pages) + 1):
        try:
            sections.append(FileSection(clean_text(reader.pages[number - 1].extract_text()), page=number))
        except Exception as error:  # a damaged page; others may be fine
            bad.append((number, f"damaged page ({_first_line(error)})"))
    if bad and not sections:
        raise InputError(f"no page can be read: {bad[0][1]}")
    if sections and not any(section.text for section in sections):
        raise InputError("no text in it: its pages are pictures. Run a text recognition (OCR) first")
    try:
        title = str((reader.metadata and reader.metadata.title) or "")
    except Exception:
        title = ""
    return FileContent(clean_text(title), sections, bad)


_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)


def _markdown(file: FileBytes) -> FileContent:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise MissingExtra("reading .md files", "markdown-it-py", "files") from None
    text, title = file.text().replace("\r\n", "\n"), ""
    if front := _FRONT_MATTER.match(text):  # settings of note-taking programs, no text
        named = re.search(r"^title:[ \t]*(.+)$", front[1], re.MULTILINE)
        text, title = text[front.end() :], named[1].strip(" \t\"'") if named else ""
    outline = _Outline()
    for level, words in _markdown_blocks(MarkdownIt("commonmark").enable("table").parse(text)):
        if level:
            outline.heading(level, words)
        else:
            outline.block(words)
    return outline.content(title)


def _markdown_blocks(tokens: Iterable[Any]) -> Iterator[tuple[int, str]]:
    """Headings with their level, and paragraphs, items of lists, rows of tables and code with level 0."""
    level, item = 0, ""
    cells: list[str] | None = None
    for token in tokens:
        kind = token.type
        if kind in ("heading_open", "heading_close"):
            level = int(token.tag[1]) if kind == "heading_open" else 0
        elif kind == "list_item_open":
            item = "- "
        elif kind == "tr_open":
            cells = []
        elif kind == "tr_close":
            yield 0, " | ".join(cells or ())
            cells = None
        elif kind == "inline":
            words = _inline(token.children or ())
            if cells is not None:
                cells.append(one_line(words))
            else:
                yield level, words if level else item + words
                item = ""
        elif kind in ("fence", "code_block", "html_block"):
            yield 0, _text_of_html(token.content) if kind == "html_block" else token.content


def _inline(tokens: Iterable[Any]) -> str:
    """The words of a paragraph, without marks and addresses of links."""
    breaks = {"softbreak": "\n", "hardbreak": "\n"}
    kept = ("text", "code_inline", "image", "text_special")
    return "".join(token.content if token.type in kept else breaks.get(token.type, "") for token in tokens)


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_DROPPED = _names("script style noscript template nav svg iframe object head title button select textarea")
_BLOCKS = _names(
    "address article aside blockquote body dd details div dl dt fieldset figcaption figure footer form header hr li "
    "main ol p pre section summary table tbody tfoot thead tr ul"
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)")

# Elements without content, and those that the next one of their kind ends.
_SHALLOW = _names(
    "area base br col embed hr img input link meta source track wbr p li dt dd tr td th option thead tbody"
)


def _html(file: FileBytes) -> FileContent:
    text = file.text(html=True)
    outline = _Outline()
    title = _walk_html(text, outline)
    return outline.content(title)


def _text_of_html(html: str) -> str:
    outline = _Outline()
    _walk_html(html, outline)
    return "\n\n".join(section.text for section in outline.content("").sections)


def _walk_html(html: str, outline: _Outline) -> str:
    """Blocks and headings to the outline; the title."""
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError:
        raise MissingExtra("reading .html files", "selectolax", "files") from None
    _check_depth(html)
    parser = LexborHTMLParser(html.replace("\0", ""))
    words: list[str] = []
    raw = 0  # how many <pre> are open
    waiting: list[tuple[Any, bool]] = [(parser.body or parser.root, False)]
    while waiting:
        node, leaving = waiting.pop()
        if node is None:
            continue
        tag = node.tag
        if tag == "-text":
            words.append(node.text_content or "" if raw else re.sub(r"\s+", " ", node.text_content or ""))
        elif leaving:
            raw -= tag == "pre"
            if tag in ("td", "th"):
                words.append(" | ")
            else:
                _end_block(outline, words, _HEADINGS.get(tag), node.attributes.get("id"))
        elif _is_content(tag, node):
            if tag == "br":
                words.append("\n")
            elif tag == "img":
                words.append(node.attributes.get("alt") or "")
            elif tag in _BLOCKS or tag in _HEADINGS:
                _end_block(outline, words)
                words += ["- "] if tag == "li" else []
                raw += tag == "pre"
            if tag in _BLOCKS or tag in _HEADINGS or tag in ("td", "th"):
                waiting.append((node, True))
            waiting += [(child, False) for child in reversed(_children(node))]
    _end_block(outline, words)
    title = parser.css_first("head title")
    return "" if title is None else clean_text(title.text())


def _check_depth(html: str) -> None:
    depth = 0
    for close, name in _TAG.findall(html):
        if name.lower() not in _SHALLOW:
            depth = max(0, depth - 1) if close else depth + 1
            if depth > _DEPTH:
                raise InputError(f"its elements are nested more than {_DEPTH:,} levels deep")


def _is_content(tag: str, node: Any) -> bool:  # noqa: ANN401 - a node of selectolax
    if not tag or tag[0] in "-!" or tag in _DROPPED:  # comments and the like begin so
        return False
    attributes = node.attributes
    return attributes.get("role") != "navigation" and "hidden" not in attributes


def _children(node: Any) -> list[Any]:  # noqa: ANN401 - of selectolax
    children, child = [], node.first_child
    while child is not None:
        children.append(child)
        child = child.next
    return children


def _end_block(
    outline: _Outline, words: list[str], level: int | None = None, anchor: str | None = None
) -> None:
    text = "".join(words).strip(" |") if words else ""
    words.clear()
    if level is not None:
        outline.heading(level, text, anchor)
    elif text != "-":
        outline.block(text)


def _docx(file: FileBytes) -> FileContent:
    try:
        import docx
        from docx.table import Table
    except ImportError:
        raise MissingExtra("reading .docx files", "python-docx", "files") from None
    from zipfile import ZipFile

    with ZipFile(BytesIO(file.data)) as packed:
        size = sum(each.file_size for each in packed.infolist())
    if size > _UNPACKED * file.max_size:
        raise InputError(
            f"it unpacks to {size / 1e6:,.0f} MB, more than {_UNPACKED} times max_size (--max-size)"
        )
    document = docx.Document(BytesIO(file.data))
    outline = _Outline()
    title = document.core_properties.title or ""
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            for row in block.rows:
                outline.block(" | ".join(dict.fromkeys(one_line(cell.text) for cell in row.cells)))
            continue
        style = (block.style.name if block.style is not None else "") or ""
        level = re.fullmatch(r"[Hh]eading (\d)", style)
        if level:
            outline.heading(int(level[1]), block.text)
        elif style == "Title":
            title = title or block.text
        else:
            outline.block(
                f"- {block.text}" if style.startswith("List") and block.text.strip() else block.text
            )
    return outline.content(title)


_READERS: Mapping[str, Callable[[FileBytes], FileContent]] = {
    ".txt": _plain,
    ".text": _plain,
    ".rst": _plain,
    ".md": _markdown,
    ".markdown": _markdown,
    ".html": _html,
    ".htm": _html,
    ".xhtml": _html,
    ".pdf": _pdf,
    ".docx": _docx,
}

DOCUMENT_SUFFIXES = frozenset(_READERS) - {".txt"}
"""Of files that cannot be anything else; a .txt alone may also have one text per line."""


def clean_text(text: str) -> str:
    """Without what an index cannot keep (NUL, half characters), and at most one empty line at a time."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return re.sub(r"[ \t]*\n(?:[ \t]*\n)+", "\n\n", text).strip()


def one_line(text: str) -> str:
    return " ".join(clean_text(text).split())


def _first_line(error: Exception) -> str:
    return (one_line(str(error))[:120] or type(error).__name__).rstrip(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that pypdf logs for every oddity of a file."""
    logger = logging.getLogger("pypdf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
