"""The learning rate of each kind of training, chosen by a rule that was fixed before its runs.

The rule: each kind is trained at the three `CANDIDATES`, the paper's rate, the highest that the tables used before,
and their geometric mean; with one seed, which no table uses; and the rate whose model has the highest Spearman
correlation on the development part is used by all tables, whatever the size of the differences. The development part
is a fifth of the training pairs of STSb: runs on NLI never see it, and runs on STSb are trained on the other four
fifths here. The development and test sets of STSb, on which the tables report, choose nothing. A cross-encoder that
was trained on NLI has no score for a pair; it is measured after STSb, at the middle rate.

Until all three runs of a kind are in the results, its tables keep the rate they had.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from reproduction.parts import DEVELOPMENT, Made
from reproduction.stored_results import Content, read_results

CANDIDATES = ("2e-5", "6e-5", "2e-4")
MIDDLE = CANDIDATES[1]
SEED = 100
FOLD = DEVELOPMENT.fold
KINDS = {
    "classification": "bi-encoder, classification on NLI",
    "ranking": "bi-encoder, in-batch ranking on NLI",
    "regression": "bi-encoder, regression on STSb",
    "cross-classification": "cross-encoder, classification on NLI, then STSb",
    "cross-regression": "cross-encoder, regression on STSb",
}


def label(kind: str, rate: str) -> str:
    """The line of the results that has this run."""
    return f"{KINDS[kind]}, {rate}"


def scores(kind: str, content: Content | None) -> dict[str, float]:
    """Rate to Spearman on the development part, of the runs that are there."""
    values = {
        row["label"]: next(iter(row["scores"].values()))["value"] for row in (content or {"rows": []})["rows"]
    }
    return {rate: values[label(kind, rate)] for rate in CANDIDATES if label(kind, rate) in values}


def choose(kind: str, before: str, content: Content | None) -> str:
    """The best of the three; `before` while one is missing. Of two equal ones the lower."""
    measured = scores(kind, content)
    return max(measured, key=lambda rate: measured[rate]) if len(measured) == len(CANDIDATES) else before


def rate_of(kind: str, *, before: str) -> str:
    """The rate that the tables use."""
    return choose(kind, before, _content())


def of_model(model: Made) -> list[str]:
    """The learning rates of its training and of those before it, the first one first."""
    before = of_model(model.start) if model.start else []
    return before + _values(model.flags)


def of_commands(commands: Sequence[str]) -> list[str]:
    """The same from the commands of a results file."""
    return [rate for command in commands for rate in _values(command.split())]


def _values(words: Sequence[str]) -> list[str]:
    return [value for flag, value in pairwise(words) if flag == "--learning-rate"]


@cache
def _content() -> Content | None:
    return read_results().get("rates")
