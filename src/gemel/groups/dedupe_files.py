"""The files of `gemel dedupe`: reads rows with all columns, writes kept.*, removed.* and a report as JSON and HTML.

kept.* and removed.* have the format of the input. The HTML page shows what was removed, as a duplicate of which text,
and in which words they differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.files import markup
from gemel.files.markup import STYLE, Markup, element, join
from gemel.files.records import Bad, RecordFile, kind_of
from gemel.files.rows import ID_COLUMN, Columns, SkippedRows, write_rows
from gemel.groups.dedupe import DedupeResult, DuplicateGroup

_REASON = ("duplicate_of", "reason", "score")

_NUMBERED = ("duplicate_of_row",)  # one more where the id is only the number of a row


@dataclass(frozen=True)
class Documents:
    """The rows of a file."""

    source: Path
    rows: list[dict[str, Any]]
    """All columns."""
    texts: list[str]
    """The text columns of each row, joined by a line break."""
    ids: list[str]
    with_ids: bool
    """Whether the ids are those of a column; else they are row numbers from 0."""
    columns: list[str]
    """All columns; of .jsonl those of the first rows."""
    ending: str
    """Of the files to write: that of the input, without .gz."""
    skipped: SkippedRows

    def name(self, position: int) -> str:
        """The id of a text, or "row 3"."""
        return self.ids[position] if self.with_ids else f"row {self.ids[position]}"


def read_documents(
    path: str | Path,
    *,
    text_columns: Sequence[str] = (),
    id_column: str | None = None,
    skip_bad: bool = False,
) -> Documents:
    """The rows of a file. The default of `text_columns` is "text", else the only column beside the ids.

    The ids are those of the column "id" if none is named and there is one, else row numbers from 0.
    """
    file = RecordFile(path)
    if file.kind == "txt" and (text_columns or id_column):
        raise InputError(f"{path}: a .txt file has one text per line and no columns to name")
    names = file.columns()
    if id_column is None and ID_COLUMN in names and ID_COLUMN not in text_columns and len(names) > 1:
        id_column = ID_COLUMN
    columns = [*text_columns] or [Columns(None, id_column, str(path)).choose_text(names, names)]
    for name in (*columns, *([id_column] if id_column else [])):
        Columns(name, None, str(path)).check(names)
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    ids: list[str] = []
    skipped = SkippedRows(skip_bad)
    for number, (line, row) in enumerate(file.all_rows()):
        wrong = _why_bad(row, columns, id_column)
        if wrong is not None or isinstance(row, Bad):
            skipped.add(f"{path}:{line}: {wrong}")
            continue
        texts.append("\n".join(row[name] for name in columns))
        ids.append(str(number if id_column is None else row[id_column]))
        rows.append(row)
    if not rows:
        raise skipped.nothing_left(str(path))
    return Documents(file.path, rows, texts, ids, id_column is not None, names, f".{file.kind}", skipped)


def _why_bad(row: dict[str, Any] | Bad, columns: Sequence[str], id_column: str | None) -> str | None:
    """Why the row cannot be used; None: it can."""
    if isinstance(row, Bad):
        return row.reason
    for name in columns:
        if not isinstance(row.get(name), str):
            return f"{name!r} must be a string, got {kind_of(row.get(name))}"
    if id_column is not None and id_column not in row:
        return f"no field {id_column!r} for the id"
    return None


def write_documents(folder: Path, documents: Documents, result: DedupeResult) -> list[Path]:
    """Write kept.* and removed.*; the latter with more columns: id or row of the kept text, exact or near, score."""
    kept = [documents.rows[i] for i in result.kept.tolist()]
    columns = zip(result.removed, result.duplicate_of, result.exact, result.score, strict=True)
    removed = []
    for i, other, same, score in columns:
        name = documents.ids[other]
        reason = [name, "exact" if same else "near", round(float(score), 4)]
        reason += [] if documents.with_ids else [int(name)]
        removed.append({**documents.rows[i], **dict(zip(_reason_names(documents), reason, strict=True))})
    paths = [folder / f"{name}{documents.ending}" for name in ("kept", "removed")]
    if documents.ending == ".txt":
        paths[1] = folder / "removed.tsv"
        _write(paths[0], "".join(f"{row['text']}\n" for row in kept))
    else:
        _write_table(paths[0], kept, documents.columns)
    _write_table(paths[1], removed, [*documents.columns, *_reason_names(documents)])
    return paths


def _reason_names(documents: Documents) -> list[str]:
    """Names for the additional columns, which the input does not have."""
    names = _REASON if documents.with_ids else (*_REASON, *_NUMBERED)
    return [f"dedupe_{name}" if name in documents.columns else name for name in names]


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


def write_json(path: Path, documents: Documents, result: DedupeResult, model: str | None) -> None:
    """Write the result with positions and ids."""
    content = result.to_json()
    for duplicate in content["duplicates"]:
        duplicate["id"] = documents.ids[duplicate["position"]]
        duplicate["duplicate_of_id"] = documents.ids[duplicate["duplicate_of"]]
    for pair in content["spared"]:
        pair["left_id"], pair["right_id"] = documents.ids[pair["left"]], documents.ids[pair["right"]]
    report = {"source": documents.source.name, "model": model, **content}
    _write(path, json.dumps(report, ensure_ascii=False, indent=2) + "\n")


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


def page(documents: Documents, result: DedupeResult, model: str | None) -> str:
    """The HTML page. It loads nothing from the network and runs no script."""
    groups = result.groups()
    scores = dict(zip(result.removed.tolist(), result.score.tolist(), strict=True))
    scores |= dict.fromkeys(result.removed[result.exact].tolist())
    title = f"Duplicates in {documents.source.name}"
    main = element(
        "main",
        *_spared(documents, result),
        element("h2", "Groups"),
        element("p", _shown(len(groups)), class_="soft"),
        *(_group(documents, group, scores) for group in groups[:GROUPS]),
    )
    return markup.page(title, STYLE + _STYLE, element("header", *_top(title, result, model)), main)


def _top(title: str, result: DedupeResult, model: str | None) -> list[Markup]:
    same = int(result.exact.sum())
    facts = {
        "texts": f"{result.texts:,}",
        "kept": f"{len(result.kept):,}",
        "removed": f"{len(result.removed):,}: {same:,} exact and {len(result.removed) - same:,} near duplicates",
        "settings": ", ".join(f"{name} {value}" for name, value in result.settings.items()),
        "model": model or "none: exact duplicates only",
    }
    listed = join([join([element("dt", name), element("dd", value)]) for name, value in facts.items()])
    why = (
        "Each removed text is a duplicate of the kept text above it: the same except for case and spaces as set, or "
        "with a similarity of at least min_score. Words that differ from the kept text are highlighted."
    )
    return [element("h1", title), element("dl", listed), element("p", why, class_="soft")]


def _shown(groups: int) -> str:
    if not groups:
        return "No duplicates."
    more = f", the largest {GROUPS} below; all are in removed.* and report.json" if groups > GROUPS else ""
    return f"{groups:,} texts had duplicates{more}."


def _group(documents: Documents, group: DuplicateGroup, scores: Mapping[int, float | None]) -> Markup:
    """`scores`: of each removed text by position, None for an exact duplicate."""
    kept = documents.texts[group.kept]
    items = []
    for position in group.removed[:MEMBERS]:
        score = scores[position]
        why = element("b", "exact" if score is None else f"{score:.3f}")
        about = element("span", why, element("small", documents.name(position)))
        items.append(element("li", about, element("span", highlighted(kept, documents.texts[position]))))
    more = len(group.removed) - MEMBERS
    if more > 0:
        items.append(element("li", element("span"), element("small", f"and {more:,} more")))
    return element(
        "article",
        element("p", _cut(kept), class_="kept"),
        element("small", f"kept, {documents.name(group.kept)}; {len(group.removed):,} removed"),
        element("ul", *items),
    )


def _spared(documents: Documents, result: DedupeResult) -> list[Markup]:
    pairs = result.spared
    if not pairs:
        return []
    explanation = (
        f"{len(pairs):,} pairs are near enough, but contradict each other by the model: not duplicates"
    )
    items = [
        element(
            "article",
            element("p", _cut(documents.texts[pair.left])),
            element("p", highlighted(documents.texts[pair.left], documents.texts[pair.right])),
            element("small", f"cosine {pair.score:.3f}, contradiction {pair.probability:.0%}"),
        )
        for pair in pairs[:MEMBERS]
    ]
    more = f"; the nearest {MEMBERS} below." if len(pairs) > MEMBERS else "."
    return [element("h2", "Contradictions"), element("p", explanation + more, class_="soft"), *items]


def highlighted(kept: str, other: str) -> Markup:
    """`other`, with the words highlighted that differ from `kept`."""
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


def _cut(text: str) -> str:
    words = text.split()
    return " ".join(words[:_WORDS]) + (" …" if len(words) > _WORDS else "")
