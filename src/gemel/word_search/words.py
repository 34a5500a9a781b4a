"""Texts to words: lower case, runs of letters and digits, nothing else."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]+")

STOP_WORDS = frozenset(
    """
    a an the this that these those and or but nor so yet if then than as because while until although though
    of at by for with about against between into through during before after above below to from up down in out
    on off over under again further once here there when where why how what which who whom whose
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself
    she her hers herself it its itself they them their theirs themselves one
    am is are was were be been being have has had having do does did doing done
    will would shall should can could may might must ought
    all any both each few more most other some such no not only own same too very just also
    s t d ll m o re ve don isn aren wasn weren hasn haven hadn doesn didn won wouldn shouldn couldn mustn
    """.split()  # noqa: SIM905 - a hundred quoted words would not be read by anyone
)
"""English words that carry grammar rather than content; the last line is what is left of short forms (don't)."""


def words_of(text: str, *, stop_words: bool = True) -> list[str]:
    """The words of a text in order, with or without the stop words."""
    words = _WORD.findall(text.lower())
    return words if stop_words else [word for word in words if word not in STOP_WORDS]
