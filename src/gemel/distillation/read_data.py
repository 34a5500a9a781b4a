"""What the student learns on: texts, texts with translations, or pairs, out of anything that training reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemel.errors import InputError
from gemel.objectives.table import Needs
from gemel.training.data import open_all
from gemel.training.data.roles import choose_columns
from gemel.training.data.sources import is_several, source_of

_TEXTS = Needs(texts=("text",), more="translation")
_PAIRS = Needs(texts=("left", "right"))
_OTHERS = (_PAIRS, Needs(texts=("anchor", "positive"), more="negative"))


@dataclass(frozen=True, eq=False)
class Rows:
    """Distinct rows of texts: one text, a text and its translations, or a pair."""

    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def texts(self) -> list[str]:
        """The first text of each row: what the teacher reads."""
        return [row[0] for row in self.rows]


def read_texts(data: object, columns: Mapping[str, str] | None = None, *, skip_bad: bool = False) -> Rows:
    """Texts, with their translations where there are columns of them; of pairs and triplets, all their texts."""
    parts = data if is_several(data) else [data]
    rows: dict[tuple[str, ...], None] = {}
    notes: dict[str, None] = {}
    for part in parts:
        names = source_of(part).columns()
        needs = next((each for each in (_TEXTS, *_OTHERS) if _fits(names, each, columns)), _TEXTS)
        for found in open_all(part, needs, columns=columns, skip_bad=skip_bad):
            texts = [found.texts.pick(column) for column in found.cells.T]
            notes |= dict.fromkeys(found.notes)
            if needs is _TEXTS:
                rows |= dict.fromkeys(zip(*texts, strict=True))
            else:
                rows |= dict.fromkeys((text,) for column in texts for text in column)
    return _checked(list(rows), tuple(notes))


def read_pairs(
    data: object, columns: Mapping[str, str] | None = None, *, skip_bad: bool = False
) -> Rows | None:
    """Pairs of texts, whatever their labels; None: the data has single texts."""
    parts = data if is_several(data) else [data]
    if not _fits(source_of(parts[0]).columns(), _PAIRS, columns):
        return None
    rows: dict[tuple[str, ...], None] = {}
    notes: dict[str, None] = {}
    for found in open_all(data, _PAIRS, columns=columns, skip_bad=skip_bad):
        rows |= dict.fromkeys(zip(*(found.texts.pick(column) for column in found.cells.T), strict=True))
        notes |= dict.fromkeys(found.notes)
    return _checked(list(rows), tuple(notes))


def _fits(names: Sequence[str], needs: Needs, columns: Mapping[str, str] | None) -> bool:
    return not choose_columns(names, needs, columns).missing


def _checked(rows: list[tuple[str, ...]], notes: tuple[str, ...]) -> Rows:
    filled = [row for row in rows if all(text.strip() for text in row)]
    if len(filled) < 2:
        raise InputError(f"a student needs at least 2 different texts, got {len(filled)}. Give thousands")
    if len({len(row) for row in filled}) > 1:
        raise InputError(
            "some of the data has translations and some has none, or more of them. Give data of one kind"
        )
    if len(filled) < len(rows):
        notes = (*notes, f"{len(rows) - len(filled):,} empty texts left out")
    return Rows(filled, notes)
