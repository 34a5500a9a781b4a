"""A file of documents in, whole rows out: kept.* and removed.* have all columns of the input, in its format.

The report of a run as one HTML page: what was removed, for which text, and in which words they differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.evaluation.report.html import STYLE
from gemel.evaluation.report.markup import Markup, element, join
from gemel.files.lines import Columns, kind_of
from gemel.files.records import RecordFile
from gemel.files.write_rows import write_rows
from gemel.groups.dedupe import DedupeResult, DuplicateGroup

_WHY = ("duplicate_of", "reason", "score")


@dataclass(frozen=True)
class Documents:
    """The rows of a file."""

    source: Path
    rows: list[dict[str, Any]]
    """All columns."""
    texts: list[str]
    """The text columns of each row, joined by a line break."""
    ids: list[str]
    columns: list[str]
    """Of a table; of .jsonl those of the first rows."""
    ending: str
    """Of the files that are written: that of the input, but for packed ones."""


def read_documents(
    path: str | Path, *, text_columns: Sequence[str] = (), id_column: str | None = None
) -> Documents:
    """Without `text_columns` the text is the column "text", else the only one. Ids default to numbers from 0."""
    file = RecordFile(path)
    if file.kind == "txt" and (text_columns or id_column):
        raise InputError(f"{path}: a .txt file has one text per line and no columns to name")
    names = file.columns()
    columns = [*text_columns] or [Columns(None, id_column, str(path)).choose_text(names, names)]
    for name in (*columns, *([id_column] if id_column else [])):
        Columns(name, None, str(path)).check(names)
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    ids: list[str] = []
    for line, row in file.rows():
        parts = [row.get(name) for name in columns]
        wrong = next((at for at, part in enumerate(parts) if not isinstance(part, str)), None)
        if wrong is not None:
            raise InputError(
                f"{path}:{line}: {columns[wrong]!r} must be a string, got {kind_of(parts[wrong])}"
            )
        if id_column is not None and id_column not in row:
            raise InputError(f"{path}:{line}: no field {id_column!r} for the id")
        texts.append("\n".join(str(part) for part in parts))
        ids.append(str(len(rows) if id_column is None else row[id_column]))
        rows.append(row)
    return Documents(file.path, rows, texts, ids, names, f".{file.kind}")


def write_documents(folder: Path, documents: Documents, found: DedupeResult) -> list[Path]:
    """kept.* and removed.*; the latter with three more columns: of which id, exact or near, and the score."""
    kept = [documents.rows[at] for at in found.kept.tolist()]
    columns = zip(found.removed, found.duplicate_of, found.exact, found.score, strict=True)
    removed = []
    for at, other, same, score in columns:
        why = (documents.ids[other], "exact" if same else "near", round(float(score), 4))
        removed.append({**documents.rows[at], **dict(zip(_why_names(documents), why, strict=True))})
    paths = [folder / f"{name}{documents.ending}" for name in ("kept", "removed")]
    if documents.ending == ".txt":
        paths[1] = folder / "removed.tsv"
        _write(paths[0], "".join(f"{row['text']}\n" for row in kept))
    else:
        _write_table(paths[0], kept, documents.columns)
    _write_table(paths[1], removed, [*documents.columns, *_why_names(documents)])
    return paths


def _why_names(documents: Documents) -> list[str]:
    """Names for the three columns that the input does not have."""
    return [f"dedupe_{name}" if name in documents.columns else name for name in _WHY]


def _write_table(path: Path, rows: list[dict[str, Any]], columns: list[str]) -> None:
    if rows or path.suffix in (".jsonl", ".parquet"):
        write_rows(path, rows)
    else:  # no rows, but still a table
        _write(path, (",", "\t")[path.suffix == ".tsv"].join(columns) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise WorkError(f"cannot write {path}: {error}") from error


def write_json(path: Path, documents: Documents, found: DedupeResult, model: str | None) -> None:
    """The report for programs: positions and ids."""
    content = found.to_json()
    for duplicate in content["duplicates"]:
        duplicate["id"] = documents.ids[duplicate["position"]]
        duplicate["duplicate_of_id"] = documents.ids[duplicate["duplicate_of"]]
    for pair in content["spared"]:
        pair["left_id"], pair["right_id"] = documents.ids[pair["left"]], documents.ids[pair["right"]]
    whole = {"source": documents.source.name, "model": model, **content}
    _write(path, json.dumps(whole, ensure_ascii=False, indent=2) + "\n")


GROUPS = 300  # groups on the page

MEMBERS = 20  # removed texts of a group

_WORDS = 80  # words of a text

_STYLE = """
article { margin: 1.2em 0; padding: 10px 14px; background: var(--panel); border-radius: 6px; }
article p { margin: .2em 0 .5em; max-width: none; overflow-wrap: anywhere; } article .kept { font-weight: 600; }
article ul { list-style: none; margin: 0; padding: 0; max-width: none; }
article li { display: grid; grid-template-columns: 7.5em minmax(0, 1fr); gap: 12px; padding: .35em 0;
  border-top: 1px solid var(--rule); }
article li b { font-weight: 500; font-variant-numeric: tabular-nums; } article li small { display: block; }
small { color: var(--soft); overflow-wrap: anywhere; }
mark { background: color-mix(in srgb, var(--c1) 26%, transparent); color: inherit; border-radius: 3px;
  padding: 0 .1em; }
"""


@dataclass(frozen=True, eq=False)
class Reported:
    """All that the page is made of."""

    title: str
    found: DedupeResult
    texts: Sequence[str]
    ids: Sequence[str]
    model: str | None


def page(content: Reported) -> str:
    """The whole page. It asks for nothing from the network and runs no script."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", content.title),
        element("style", Markup(STYLE + _STYLE)),
    )
    groups, scores = content.found.groups(), scores_of(content.found)
    blocks = [
        element("h2", "Groups"),
        element("p", _shown(len(groups)), class_="soft"),
        *(_group(content, group, scores) for group in groups[:GROUPS]),
    ]
    body = element("body", element("header", *_top(content)), element("main", *_spared(content), *blocks))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def scores_of(found: DedupeResult) -> dict[int, tuple[float, bool]]:
    """Score and exactness of each removed text by its position."""
    columns = zip(found.removed.tolist(), found.score.tolist(), found.exact.tolist(), strict=True)
    return {position: (score, same) for position, score, same in columns}


def _top(content: Reported) -> list[Markup]:
    found = content.found
    same = int(found.exact.sum())
    settings = ", ".join(f"{name} {value}" for name, value in found.settings.items())
    facts = [
        ("texts", f"{found.texts:,}"),
        ("kept", f"{len(found.kept):,}"),
        (
            "removed",
            f"{len(found.removed):,}: {same:,} exact and {len(found.removed) - same:,} near duplicates",
        ),
        ("settings", settings),
        ("model", content.model or "none: exact duplicates only"),
    ]
    listed = join([join([element("dt", name), element("dd", said)]) for name, said in facts])
    why = (
        "Each removed text is a duplicate of the kept one above it: the same but for case and spaces as set, or at "
        "least as similar as min_score. Words that the kept text does not have in that place are marked."
    )
    return [element("h1", content.title), element("dl", listed), element("p", why, class_="soft")]


def _shown(groups: int) -> str:
    if not groups:
        return "No duplicates."
    more = f", the largest {GROUPS} below; all are in removed.* and report.json" if groups > GROUPS else ""
    return f"{groups:,} texts had duplicates{more}."


def _group(content: Reported, group: DuplicateGroup, scores: dict[int, tuple[float, bool]]) -> Markup:
    kept = content.texts[group.kept]
    items = []
    for position in group.removed[:MEMBERS]:
        score, same = scores[position]
        why = element("span", element("b", "exact" if same else f"{score:.3f}"), _id(content, position))
        items.append(element("li", why, element("span", marked(kept, content.texts[position]))))
    more = len(group.removed) - MEMBERS
    if more > 0:
        items.append(element("li", element("span"), element("small", f"and {more:,} more")))
    return element(
        "article",
        element("p", _cut(kept), class_="kept"),
        element("small", f"kept, {content.ids[group.kept]}; {len(group.removed):,} removed"),
        element("ul", *items),
    )


def _spared(content: Reported) -> list[Markup]:
    pairs = content.found.spared
    if not pairs:
        return []
    said = (
        f"{len(pairs):,} pairs are near enough, but the model reads a contradiction: they are no duplicates"
    )
    items = [
        element(
            "article",
            element("p", _cut(content.texts[pair.left])),
            element("p", marked(content.texts[pair.left], content.texts[pair.right])),
            element("small", f"cosine {pair.score:.3f}, contradiction {pair.probability:.0%}"),
        )
        for pair in pairs[:MEMBERS]
    ]
    more = f"; the nearest {MEMBERS} below." if len(pairs) > MEMBERS else "."
    return [element("h2", "Kept apart"), element("p", said + more, class_="soft"), *items]


def marked(kept: str, other: str) -> Markup:
    """`other`, with the words marked that `kept` does not have in that place."""
    one, two = kept.split()[:_WORDS], other.split()[:_WORDS]
    matcher = SequenceMatcher(
        None, [word.casefold() for word in one], [word.casefold() for word in two], False
    )
    parts: list[str] = []
    for kind, _, _, begin, end in matcher.get_opcodes():
        words = " ".join(two[begin:end])
        if words:
            parts.append(words if kind == "equal" else element("mark", words))
    if len(other.split()) > _WORDS:
        parts.append("…")
    return join(parts, " ")


def _id(content: Reported, position: int) -> Markup:
    return element("small", content.ids[position])


def _cut(text: str) -> str:
    words = text.split()
    return " ".join(words[:_WORDS]) + (" …" if len(words) > _WORDS else "")
