"""What the formulas know of a processor: numbers that were measured, and where they come from.

Those of the index, of pairs and of search come with the package (`data/scale.json`, made by benchmarks/plan_fit.py from
committed results). That of encoding is the one that `gemel bench` left on this machine, where it did.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from gemel.encoder.tuning import processor, tuning_file
from gemel.options import Precision
from gemel.scale_plan.question import Question


@dataclass(frozen=True)
class Constants:
    """Rates are those of one core; a row is a passage of the index."""

    source: str
    """Where the numbers come from, for a person."""
    encode_flop: Mapping[str, float]
    """Operations of the network a second, by precision."""
    pair_products: float
    """Multiply-adds a second of `similar_pairs`, as if it computed every one."""
    search_products: float
    """The same of exact `search`."""
    search_seconds: float
    """Of exact search, for a query besides its products."""
    list_products: float
    """Multiply-adds a second of faiss, which trains and fills the lists."""
    write_seconds: float
    """For a row that is written to the index."""
    merge_seconds: float
    """For a row whose small fragment is merged with others."""
    look_seconds: float
    """For a stored row that is looked at to see whether a new id is there."""
    build_seconds: float
    """For a row when lists are built, besides their products."""
    ask_seconds: float
    """For a query in lists, whatever their size."""
    code_seconds: float
    """For a code that a query looks at."""
    asked_at: float
    """Rows of the largest index that was asked."""
    asked_codes: float
    """Codes that a query looked at there."""
    asked_power: float
    """How the looked-at codes grow: rows to this power."""
    code_bytes: float
    """Of a code, for each number of the vector."""
    row_memory: float
    """Bytes for a row in memory besides its code."""
    base_memory: float
    """Bytes of a process with a model and an index of no rows."""
    row_disk: float
    """Bytes for a row on disk besides vectors, texts and code."""
    fragment_bytes: float
    """Of a fragment in the list that each commit writes."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@cache
def committed() -> Constants:
    """Those that come with the package."""
    text = files("gemel").joinpath("data/scale.json").read_text(encoding="utf-8")
    return Constants(**json.loads(text))


def here(question: Question) -> Constants:
    """Those of the package, with the rate of encoding that `gemel bench` kept on this machine for such a network."""
    known, precision = committed(), question.precision
    found = _benched(question, precision)
    if found is None:
        return known
    source = f"encoding: `gemel bench` on this machine ({processor()}); the rest: {known.source}"
    return replace(known, source=source, encode_flop={**known.encode_flop, precision: found})


def _benched(question: Question, precision: Precision) -> float | None:
    """Operations a second of a core, from the file of `gemel bench`; None: it has no such network, or no tokens."""
    try:
        content = json.loads(tuning_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    shape = f"{question.layers} layers, {question.width} wide, {question.inner} inner, "
    for key, choice in content.items() if isinstance(content, dict) else ():
        if not key.startswith(f"{processor()}; ") or not re.search(rf"; {shape}\d+ heads; {precision}$", key):
            continue
        try:
            operations = question.flop(float(choice["mean_tokens"]))
            return float(choice["texts_per_second"]) * operations / float(choice["threads"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            continue
    return None
