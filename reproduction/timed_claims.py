"""Claims about speed, and the student's: ratios, decided by the slowest and the fastest round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reproduction.parts import START
from reproduction.shapes import BASE
from reproduction.stored_results import Content

Found = dict[str, Content]


@dataclass(frozen=True)
class Ratio:
    """How many times as fast or as good, and its interval."""

    value: float
    low: float
    high: float
    basis: str = ""


@dataclass(frozen=True)
class TimedClaim:
    """Holds if the ratio's low end is at least `needed`."""

    name: str
    table: str
    text: str
    paper: str
    needed: float
    ratio: Callable[[Found], Ratio | None]


def _rates(result: Found, model: str, system: str) -> list[float]:
    rows = result.get("7", {"rows": []})["rows"]
    return [
        row["sentences"] / seconds
        for row in rows
        if (row["model"], row["system"]) == (model, system)
        for seconds in row["seconds"]
    ]


def _faster(result: Found, fast: tuple[str, str], slow: tuple[str, str]) -> Ratio | None:
    one, two = _rates(result, *fast), _rates(result, *slow)
    if not one or not two:
        return None
    return Ratio(max(one) / max(two), min(one) / max(two), max(one) / min(two), f"{len(one)} rounds")


def smart_batching(result: Found) -> Ratio | None:
    return _faster(result, (BASE, "sorted"), (BASE, "padded"))


def word_vectors(result: Found) -> Ratio | None:
    return _faster(result, ("Avg. GloVe", "glove"), (BASE, "sorted"))


def most_similar_pair(result: Found) -> Ratio | None:
    rows = [row for row in result.get("headline", {"rows": []})["rows"] if "cross_seconds" in row]
    if not rows:
        return None
    row = next((row for row in rows if row["model"] == BASE), rows[0])
    whole = [row["pairs"] * seconds / row["cross_sample"] for seconds in row["cross_seconds"]]
    ours = row["bi_seconds"]
    basis = f"{len(ours)} rounds, {row['model']}"
    return Ratio(min(whole) / min(ours), min(whole) / max(ours), max(whole) / min(ours), basis)


def student_share(label: str, suite: str = "") -> Callable[[Found], Ratio | None]:
    """The student's average as a share of the teacher's on a suite; STS if none is named."""

    def share(result: Found) -> Ratio | None:
        for row in result.get("student", {"rows": []})["rows"]:
            fits = row["suite"] == suite if suite else row["suite"].startswith("sts")
            if row["label"] == label and fits and (ends := row.get("share")):
                return Ratio(ends["value"], ends["low"], ends["high"], "of the teacher's average")
        return None

    return share


def student_speed(label: str) -> Callable[[Found], Ratio | None]:
    def faster(result: Found) -> Ratio | None:
        rows = {row["model"]: row["seconds"] for row in result.get("front", {"rows": []})["rows"]}
        if not {label, "teacher"} <= set(rows):
            return None
        own, teacher = rows[label], rows["teacher"]
        rounds = f"{len(own)} rounds"
        return Ratio(min(teacher) / min(own), min(teacher) / max(own), max(teacher) / min(own), rounds)

    return faster


STUDENTS = {
    "two layers": "The student of two layers",
    "three layers": "The student of three layers",
    START: f"The student {START}",
}
GOALS = (
    ("", "STS average", 0.97),
    ("retrieval", "retrieval nDCG@10", 0.93),
    ("clustering", "clustering V-measure", 0.93),
)
"""Of a student worth having: suite, its measure, share of the teacher's score; and twice the speed."""


def _student_claims(label: str, name: str) -> list[TimedClaim]:
    shares = [
        TimedClaim(f"{label}-{suite or 'sts'}", "student", f"{name} has {100 * share:.0f} % of its teacher's {what}",
                   "not in the paper", share, student_share(label, suite=suite))
        for suite, what, share in GOALS
    ]  # fmt: skip
    text = f"{name} is twice as fast as its teacher"
    return [
        *shares,
        TimedClaim(f"{label}-speed", "front", text, "not in the paper", 2.0, student_speed(label)),
    ]


TIMED_CLAIMS = (
    TimedClaim("smart-batching", "7", "Batches of similar length (smart batching) make a BERT-base faster on a CPU",
               "83 against 44 per second: × 1.89", 1.0, smart_batching),
    TimedClaim("glove-is-faster", "7", "Averaging GloVe vectors is far faster: ten times at least",
               "6,469 against 83 per second: × 78", 10.0, word_vectors),
    TimedClaim("seconds-not-hours", "headline", "The most similar pair of 10,000 sentences takes a bi-encoder under "
               "a thousandth of a cross-encoder's time", "65 hours against 5 seconds", 1000.0, most_similar_pair),
    *(claim for label, name in STUDENTS.items() for claim in _student_claims(label, name)),
    TimedClaim("static-sts", "student", "The static student has 85 % of its teacher's STS average",
               "not in the paper", 0.85, student_share("static")),
    TimedClaim("static-speed", "front", "The static student is fifty times as fast as its teacher",
               "not in the paper", 50.0, student_speed("static")),
)  # fmt: skip


def timed_verdict(claim: TimedClaim, ratio: Ratio) -> str:
    if ratio.low >= claim.needed:
        return "holds"
    return "does not hold" if ratio.high < claim.needed else "undecided"


def timed_rows(result: Found) -> list[list[str]]:
    """Lines of the table of claims."""
    rows = []
    for claim in TIMED_CLAIMS:
        ratio = claim.ratio(result)
        if ratio is None:
            rows.append([claim.table, claim.text, claim.paper, "", "not run"])
            continue
        digits = 3 if ratio.high < 10 else 2  # an end may be near what is needed
        value, low, high = (f"{number:,.{digits}f}" for number in (ratio.value, ratio.low, ratio.high))
        cell = f"× {value} [{low}, {high}], {ratio.basis}"
        rows.append([claim.table, claim.text, claim.paper, cell, f"**{timed_verdict(claim, ratio)}**"])
    return rows
