"""Why classification loses directions: STS, effective rank and mean cosine over the steps of short trainings.

Each trial is a training on the same NLI pairs that is evaluated ten times on the development part of `rates.py`; all
numbers are read from its journal. Trials differ in the objective, the learning rate, what the head sees, and the fix
that is tested: a learning rate of its own for the head (`gemel train --head-learning-rate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemel.training.journal import read_journal
from reproduction.making import RECORD, commands, make
from reproduction.parts import NLI, START, Folders, Made, Rows
from reproduction.scales import Scale

LOW, MIDDLE, HIGH = "2e-5", "6e-5", "2e-4"
HEAD_RATE = "1e-3"
BATCH = 32
EVALUATIONS = 10
OBJECTIVES = {
    "classification": ("--objective", "classification"),
    "regression": ("--objective", "regression"),
    "ranking": ("--objective", "in-batch-ranking"),
}
CONCATS = ("u,v", "|u-v|", "u*v")
"""Besides the default, (u,v,|u-v|)."""


@dataclass(frozen=True)
class Trial:
    """One training."""

    objective: str
    rate: str
    head_rate: str = ""
    concat: str = ""
    seed: int = 0

    @property
    def label(self) -> str:
        """All seeds of a setting have the same label."""
        parts = [self.objective, f"({self.concat})" if self.concat else "", self.rate]
        return ", ".join([*filter(None, parts), *([f"head {self.head_rate}"] if self.head_rate else [])])

    def model(self, scale: Scale) -> Made:
        pairs = scale.collapse_pairs
        shape = "graded" if self.objective == "regression" else ""
        flags = [*OBJECTIVES[self.objective], "--batch-size", str(BATCH), "--learning-rate", self.rate]
        flags += ["--head-learning-rate", self.head_rate] if self.head_rate else []
        flags += ["--concat", self.concat] if self.concat else []
        # In-batch ranking uses the third of the pairs that are entailments, so it has fewer steps.
        steps = pairs // BATCH // (3 if self.objective == "ranking" else 1)
        flags += ["--eval-data", "{development}", "--eval-steps", str(max(1, steps // EVALUATIONS))]
        plain = self.label.replace("|u-v|", "d").replace("u*v", "m")
        name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in plain)
        start = Made(START, source="start")
        rows = Rows(NLI, pairs, self.seed, shape=shape)
        return Made(
            f"collapse-{name}-s{self.seed}", "", "train", start, rows, flags=tuple(flags), seed=self.seed
        )


def trials(scale: Scale) -> Iterator[Trial]:
    """The rates first, then the fix, the objectives, what the head sees, and more seeds of the rates and of the fix.

    A scale with one rate compares the fix only.
    """
    every = scale.collapse_rates
    for rate in every:
        yield Trial("classification", rate)
    for rate in every:
        yield Trial("classification", rate, HEAD_RATE)
    if len(every) == 1:
        return
    for rate in (LOW, HIGH):
        yield Trial("ranking", rate)
        yield Trial("regression", rate)
    for concat in CONCATS:
        yield Trial("classification", HIGH, concat=concat)
    for seed in scale.seeds[1:]:
        for rate in every:
            yield Trial("classification", rate, seed=seed)
            yield Trial("classification", rate, HEAD_RATE, seed=seed)


def observe(
    trial: Trial, scale: Scale, folders: Folders, stored: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The row of a trial, which is run unless one of the `stored` rows was made by the same command."""
    model = trial.model(scale)
    there = (Path(folders.work) / model.name / RECORD).exists()
    earlier = [row for row in stored if [row["command"]] == commands(model, folders)]
    if earlier and not there:
        return earlier[0]
    made = make(model, folders)
    journal = read_journal(Path(folders.work) / model.name / "training" / "metrics.jsonl")
    kept = {name: made[name] for name in ("command", "seconds", "seed")}
    return {"label": trial.label, "model": model.name, **kept, **over_steps(journal)}


def over_steps(journal: list[dict[str, Any]]) -> dict[str, Any]:
    """The evaluations of a run, and what it warned of at which step."""
    scores = {line["step"]: line["score"] for line in journal if line["kind"] == "evaluation"}
    health = {line["step"]: line for line in journal if line["kind"] == "health"}
    steps = [
        {
            "step": step,
            "score": round(scores[step], 2),
            "effective_rank": round(health[step]["effective_rank"], 2),
            "mean_cosine": round(health[step]["mean_cosine"], 4),
        }
        for step in sorted(scores.keys() & health.keys())
    ]
    warnings = [{"step": line["step"], "text": line["text"]} for line in journal if line["kind"] == "warning"]
    return {"steps": steps, "warnings": warnings}
