"""README.md of a trained model: what it is, how to use it, how it was made, what was measured, and its limits.

Everything in it was given or measured. What nobody knows, such as the language or the licence, is left out.

What is said of a finished run, to its report and to the model's card: facts that were given or measured, no more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gemel.evaluation.report.content import score_cell
from gemel.evaluation.task import Score, Scores
from gemel.training.data.store import Examples
from gemel.training.options import TrainOptions

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

_ASIDE = {"progress", "tracker", "skip_bad", "force", "keep_checkpoints", "device", "threads"}
"""Options that do not change what is trained."""


def model_card(summary: Summary) -> str:
    """The whole text, front matter included."""
    parts = [
        _front_matter(summary),
        f"# {_plain(summary.name)}",
        _what(summary),
        "## Use",
        _use(summary),
        "## Training",
        _training(summary),
        "## Scores",
        _scores(summary),
        "## Limits",
        _limits(summary),
        "## Versions",
        ", ".join(summary.versions),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(summary: Summary) -> str:
    """YAML; strings are quoted as JSON, which YAML reads."""
    if summary.kind == "cross":
        tags, pipeline = ["text-ranking", "cross-encoder"], "text-ranking"
        if len(summary.labels) > 1:
            tags, pipeline = ["text-classification", "cross-encoder"], "text-classification"
    else:
        tags, pipeline = ["sentence-similarity", "feature-extraction"], "sentence-similarity"
    lines = ["---", "library_name: sentence-transformers", f"pipeline_tag: {pipeline}", "tags:"]
    lines += [f"- {tag}" for tag in (*tags, "sentence-transformers", "gemel")]
    # A path on somebody's disk is no name of a model.
    if _HUB_NAME.fullmatch(summary.base_model):
        lines.append(f"base_model: {json.dumps(summary.base_model)}")
    return "\n".join([*lines, "---"])


def _what(summary: Summary) -> str:
    base = _code(re.split(r"[/\\]", summary.base_model.rstrip("/\\"))[-1] or summary.base_model)
    if _HUB_NAME.fullmatch(summary.base_model):
        base = _code(summary.base_model)
    if summary.kind == "cross":
        gives = "A cross-encoder: it reads two texts together and gives a score"
        gives += f" for each of {', '.join(map(_code, summary.labels))}" if len(summary.labels) > 1 else ""
    else:
        size = f" of {summary.dim} numbers" if summary.dim else ""
        gives = f"A sentence encoder: it turns a text into a vector{size}, to be compared by cosine"
    return f"{gives}. Trained from {base} with gemel."


def _use(summary: Summary) -> str:
    name = json.dumps(summary.name, ensure_ascii=False)
    if summary.kind == "cross":
        call = "probabilities" if len(summary.labels) > 1 else "scores"
        ours = f'model = gemel.load_cross({name})\nmodel.{call}(["A man plays."], ["Someone makes music."])'
        theirs = f'model = CrossEncoder({name})\nmodel.predict([("A man plays.", "Someone makes music.")])'
        imported = "CrossEncoder"
    else:
        texts = '["A man plays a guitar.", "Someone makes music."]'
        ours = f"model = gemel.load({name})\nvectors = model.encode({texts})"
        if summary.labels:
            ours += '\nmodel.relation(["A man plays."], ["Nobody plays."])  # ' + " ".join(
                ", ".join(summary.labels).split()
            )
        theirs = f"model = SentenceTransformer({name})\nvectors = model.encode({texts})"
        imported = "SentenceTransformer"
    return (
        f"{_code(summary.name)} is the folder of the model.\n\n"
        f"```python\nimport gemel\n\n{ours}\n```\n\nor\n\n```python\n"
        f"from sentence_transformers import {imported}\n\n{theirs}\n```"
    )


def _training(summary: Summary) -> str:
    settings = ", ".join(f"{name} {said(value)}" for name, value in summary.settings.items())
    lines = [f"- objective: {_code(summary.objective)}" + (f" ({_plain(settings)})" if settings else "")]
    lines += [f"- data: {_data(each)}" for each in summary.data]
    lines.append(f"- steps: {summary.steps:,}{_kept(summary)}")
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in summary.options.items()}
    always: dict[str, Any] = {
        name: options[name] for name in ("epochs", "batch_size", "learning_rate", "seed") if name in options
    }
    shown = {**always, **changed_options(options, asdict(TrainOptions()))}
    told = [f"{name} {_plain(said(value))}" for name, value in shown.items() if name not in _ASIDE]
    lines.append(f"- settings: {'; '.join(told)}; all others are gemel's defaults")
    if summary.stopped:
        lines.append(f"- ended early: {_plain(summary.stopped)}")
    return "\n".join(lines)


def _kept(summary: Summary) -> str:
    return "" if summary.best_step is None else f"; the weights are those of step {summary.best_step:,}"


def _data(data: DataSet) -> str:
    text = f"{_code(data.name)}, {data.rows:,} rows of {', '.join(data.roles)}"
    text += f" with labels {', '.join(map(_plain, data.classes))}" if data.classes else ""
    return text + (f"; {data.skipped:,} bad rows were left out" if data.skipped else "")


def _scores(summary: Summary) -> str:
    if not summary.measured:
        return "The model was not evaluated when it was trained."
    rows = [_row(each) for each in summary.measured]
    note = "In points (82.03 is 0.8203)"
    if any(each.score.low is not None for each in summary.measured):
        note += ", with 95 % bootstrap intervals"
    if summary.best_step is not None:
        note += (
            ". The step was chosen by these scores, so they are a little too good: measure on other data too"
        )
    head = "| task | data | number | untrained | trained | size |\n|---|---|---|---|---|---|"
    return f"{head}\n" + "\n".join(rows) + f"\n\n{note}."


def _row(each: MeasuredScores) -> str:
    cells = (
        each.task,
        each.dataset,
        each.metric,
        str(score_cell(each.untrained)),
        str(score_cell(each.score)),
        f"{each.items:,} {each.unit}",
    )
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _limits(summary: Summary) -> str:
    lines = []
    if summary.max_length:
        one = "A pair" if summary.kind == "cross" else "A text"
        lines.append(
            f"- {one} counts up to {summary.max_length} tokens, marks included; what is over is cut off."
        )
    lines.append("- It was trained on the data above and measured on no other than named above.")
    if not summary.measured:
        lines.append("- How good it is, nobody has measured yet: `gemel evaluate` does.")
    return "\n".join(lines)


def _code(text: str) -> str:
    """As code; backticks inside would end it."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def _plain(text: str) -> str:
    """Text that Markdown and HTML leave alone."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(text.split()))


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
class MeasuredScores:
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
    def from_json(cls, content: Mapping[str, Any]) -> MeasuredScores:
        """What `asdict` made of one that knows of no training."""
        return cls(**{**content, "score": Score(**content["score"])})


def measured(after: Sequence[Scores], before: Sequence[MeasuredScores] = ()) -> tuple[MeasuredScores, ...]:
    """The main numbers of a model, each with that of the untrained one where it was measured."""
    start = {(each.task, each.dataset): each.score for each in before}
    return tuple(
        MeasuredScores(
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
    measured: tuple[MeasuredScores, ...] = ()
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
    def best(self) -> MeasuredScores | None:
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
