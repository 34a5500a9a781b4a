"""What an index says of itself: sizes, layout, recall, and whose vectors they are."""

from __future__ import annotations

from dataclasses import fields

from gemel.index.port import TableStats
from gemel.index.state import State
from gemel.index.types import IndexStats
from gemel.word_search.words import WordRules


def stats_of(state: State, place: str) -> IndexStats:
    """The table's facts and those of its header."""
    found, header, binding = state.table.stats(), state.table.header, state.binding
    return IndexStats(
        **{each.name: getattr(found, each.name) for each in fields(TableStats)},
        place=place,
        model=None if binding is None else binding.model,
        fingerprint=None if binding is None else binding.fingerprint.digest,
        dim=header.dim,
        fields=dict(header.fields),
        passage_tokens=state.passage_tokens,
        words=_words(header.words),
        format=header.format,
        made_by=f"gemel {header.bound.get('gemel', '')}".strip(),
    )


def _words(rules: WordRules) -> str:
    if rules.version == 1:
        return (
            "version 1: Chinese, Japanese and Thai are not cut into words. To rebuild them: gemel index words, "
            "or index.rebuild_words()"
        )
    return f"version {rules.version}, " + (f"stemming {rules.stemming}" if rules.stemming else "no stemming")
