"""What is said of a finished run, to its report and to the model's card: facts that were given or measured, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gemel.evaluation.scores import Score, Scores
from gemel.training.examples import Examples


@dataclass(frozen=True)
class DataSet:
    """One data set that a model was trained on."""

    name: str
    rows: int
    roles: tuple[str, ...]
    classes: tuple[str, ...] = ()
    skipped: int = 0
    """Rows that could not be used."""
    notes: tuple[str, ...] = ()
    fingerprint: str = ""

    @classmethod
    def of(cls, examples: Examples) -> DataSet:
        """What the examples say of themselves."""
        return cls(
            name=examples.name,
            rows=len(examples),
            roles=tuple(examples.roles),
            classes=tuple(examples.classes),
            skipped=int(getattr(examples, "skipped", 0)),
            notes=tuple(map(str, getattr(examples, "notes", ()))),
            fingerprint=examples.fingerprint(),
        )


@dataclass(frozen=True)
class Measured:
    """The main number of one evaluation; shares are in points, the interval is the 95 % bootstrap one."""

    task: str
    dataset: str
    metric: str
    score: Score
    items: int
    unit: str
    untrained: Score | None = None
    """The same number of the model before training."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Measured:
        """What `asdict` made of one that knows of no training."""
        return cls(**{**content, "score": Score(**content["score"])})


def measured(after: Sequence[Scores], before: Sequence[Measured] = ()) -> tuple[Measured, ...]:
    """The main numbers of a model, each with that of the untrained one where it was measured."""
    start = {(each.task, each.dataset): each.score for each in before}
    return tuple(
        Measured(
            each.task,
            each.dataset,
            each.main,
            each.values[each.main],
            each.items,
            each.unit,
            start.get((each.task, each.dataset)),
        )
        for each in after
    )


def package_versions() -> tuple[str, ...]:
    """Of gemel, Python and the packages that trained the model."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("gemel", "torch", "transformers", "accelerate", "peft", "numpy"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return (*found[:1], f"Python {platform.python_version()}", *found[1:])


@dataclass(frozen=True)
class Summary:
    """One run."""

    name: str
    """Of the model: the last part of its folder."""
    base_model: str
    """As it was asked for: a name or a folder."""
    objective: str
    settings: Mapping[str, Any]
    """Of the objective."""
    options: Mapping[str, Any]
    """The fields of `TrainOptions`."""
    data: tuple[DataSet, ...]
    steps: int
    best_step: int | None = None
    """The step whose weights were kept, where evaluation chose it."""
    measured: tuple[Measured, ...] = ()
    dim: int | None = None
    max_length: int | None = None
    labels: tuple[str, ...] = ()
    """Of the head that is kept with the model; empty without one."""
    stopped: str = ""
    """Why the run ended before its last step."""
    kind: Literal["twin", "cross"] = "twin"
    """twin: a vector a text; cross: a score a pair."""
    versions: tuple[str, ...] = field(default_factory=package_versions)
    """Name and number of each package, such as "torch 2.13.0"."""

    @property
    def best(self) -> Measured | None:
        """The number that stands for the run: the last one, which is the average where there are several data sets."""
        return self.measured[-1] if self.measured else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def changed_options(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not at their defaults."""
    return {name: value for name, value in options.items() if name in defaults and value != defaults[name]}


def said(value: object) -> str:
    """A setting as text: lists without brackets, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
