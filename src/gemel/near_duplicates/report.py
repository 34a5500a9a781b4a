"""The report of a run as one HTML page: what was removed, for which text, and in which words they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from gemel.evaluation.report.markup import Markup, element, join
from gemel.evaluation.report.style import STYLE
from gemel.near_duplicates.result import Deduped, DuplicateGroup

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
    found: Deduped
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


def scores_of(found: Deduped) -> dict[int, tuple[float, bool]]:
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
