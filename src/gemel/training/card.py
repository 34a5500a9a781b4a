"""The model card (README.md) of a trained model, and the summary of a run that card and report are made from.

Everything in it was given or measured; what is unknown, such as the language or the license, is left out.
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

_IRRELEVANT = {"progress", "tracker", "skip_bad", "force", "keep_checkpoints", "device", "threads"}
"""Options that do not change what is trained."""


def model_card(summary: Summary) -> str:
    """The text of README.md, with its front matter."""
    parts = [
        _front_matter(summary),
        f"# {_plain(summary.name)}",
        _description(summary),
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
    if summary.kind == "cross-encoder":
        tags, pipeline = ["text-ranking", "cross-encoder"], "text-ranking"
        if len(summary.labels) > 1:
            tags, pipeline = ["text-classification", "cross-encoder"], "text-classification"
    elif summary.kind == "sparse":
        tags, pipeline = ["sparse-encoder", "splade", "feature-extraction"], "feature-extraction"
    elif summary.kind == "late":
        tags, pipeline = ["late-interaction", "ColBERT", "PyLate"], "sentence-similarity"
    else:
        tags, pipeline = ["sentence-similarity", "feature-extraction"], "sentence-similarity"
    lines = ["---", "library_name: sentence-transformers", f"pipeline_tag: {pipeline}", "tags:"]
    lines += [f"- {tag}" for tag in (*tags, "sentence-transformers", "gemel")]
    # Not for a path on a disk.
    if _HUB_NAME.fullmatch(summary.base_model):
        lines.append(f"base_model: {json.dumps(summary.base_model)}")
    return "\n".join([*lines, "---"])


def _description(summary: Summary) -> str:
    base = _code(re.split(r"[/\\]", summary.base_model.rstrip("/\\"))[-1] or summary.base_model)
    if _HUB_NAME.fullmatch(summary.base_model):
        base = _code(summary.base_model)
    if summary.kind == "cross-encoder":
        output = "A cross-encoder: it reads two texts together and gives a score"
        output += f" for each of {', '.join(map(_code, summary.labels))}" if len(summary.labels) > 1 else ""
    elif summary.kind == "sparse":
        output = f"A sparse encoder (SPLADE): it gives a text weights of {summary.dim:,} words, mostly zero"
    elif summary.kind == "late":
        output = f"A model for late interaction (ColBERT): it makes a vector of {summary.dim} numbers of each token"
    else:
        size = f" of {summary.dim} numbers" if summary.dim else ""
        output = f"A sentence encoder: it turns a text into a vector{size}, to be compared by cosine"
    return f"{output}. Trained from {base} with gemel."


def _use(summary: Summary) -> str:
    name = json.dumps(summary.name, ensure_ascii=False)
    if summary.kind == "cross-encoder":
        call = "probabilities" if len(summary.labels) > 1 else "scores"
        ours = f'model = gemel.load_cross({name})\nmodel.{call}(["A man plays."], ["Someone makes music."])'
        theirs = f'model = CrossEncoder({name})\nmodel.predict([("A man plays.", "Someone makes music.")])'
        imported = "CrossEncoder"
    elif summary.kind in ("sparse", "late"):
        return _use_for_search(summary, name)
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


def _use_for_search(summary: Summary, name: str) -> str:
    """Of a model that encodes queries and documents."""
    encode = (
        'queries = model.encode_query(["who makes music?"])\n'
        'documents = model.encode_document(["A man plays a guitar."])'
    )
    if summary.kind == "sparse":
        ours = f"import gemel\n\nmodel = gemel.load_sparse({name})\n{encode}\nqueries.similarity(documents)"
        theirs = f"from sentence_transformers import SparseEncoder\n\nmodel = SparseEncoder({name})\n{encode}"
    else:
        ours = f"import gemel\n\nmodel = gemel.load_late({name})\n{encode}\ngemel.maxsim(queries, documents)"
        theirs = f"from pylate import models\n\nmodel = models.ColBERT({name})"
    return (
        f"{_code(summary.name)} is the folder of the model.\n\n"
        f"```python\n{ours}\n```\n\nor\n\n```python\n{theirs}\n```"
    )


def _training(summary: Summary) -> str:
    settings = ", ".join(f"{name} {setting_text(value)}" for name, value in summary.settings.items())
    lines = [f"- objective: {_code(summary.objective)}" + (f" ({_plain(settings)})" if settings else "")]
    lines += [f"- data: {_data(each)}" for each in summary.data]
    lines.append(f"- steps: {summary.steps:,}{_best_step(summary)}")
    options = summary.options
    always = {name: options[name] for name in ("epochs", "batch_size", "learning_rate", "seed")}
    shown = {**always, **changed_options(options)}
    texts = [
        f"{name} {_plain(setting_text(value))}" for name, value in shown.items() if name not in _IRRELEVANT
    ]
    lines.append(f"- settings: {'; '.join(texts)}; all others are gemel's defaults")
    if summary.stopped:
        lines.append(f"- ended early: {_plain(summary.stopped)}")
    return "\n".join(lines)


def _best_step(summary: Summary) -> str:
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
        note += ". The step was chosen by these scores, so they are slightly optimistic: evaluate on other data too"
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
        one = "A pair" if summary.kind == "cross-encoder" else "A text"
        lines.append(
            f"- {one} may have up to {summary.max_length} tokens, special tokens included; the rest is truncated."
        )
    lines.append("- It was trained and evaluated only on the data above.")
    if not summary.measured:
        lines.append("- It has not been evaluated yet: use `gemel evaluate`.")
    return "\n".join(lines)


def _code(text: str) -> str:
    """Inline code; backticks inside are replaced."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def _plain(text: str) -> str:
    """Text with the special characters of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(text.split()))


@dataclass(frozen=True)
class DataSet:
    """A data set that a model was trained on."""

    name: str
    rows: int
    roles: tuple[str, ...]
    classes: tuple[str, ...] = ()
    skipped: int = 0
    """Rows that could not be used."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, examples: Examples) -> DataSet:
        """Name, size, columns and notes of `examples`."""
        return cls(
            examples.name,
            len(examples),
            examples.roles,
            examples.classes,
            examples.skipped,
            examples.notes,
        )


@dataclass(frozen=True)
class MeasuredScores:
    """The main metric of one evaluation; shares are times 100, the interval is the 95 % bootstrap one."""

    task: str
    dataset: str
    metric: str
    score: Score
    items: int
    unit: str
    untrained: Score | None = None
    """The same metric before training."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> MeasuredScores:
        """The inverse of `asdict`, for scores before training."""
        return cls(**{**content, "score": Score(**content["score"])})


def measured(after: Sequence[Scores], before: Sequence[MeasuredScores] = ()) -> tuple[MeasuredScores, ...]:
    """The main metrics of a model, each with that before training if it was measured."""
    untrained = {(each.task, each.dataset): each.score for each in before}
    return tuple(
        MeasuredScores(
            each.task,
            each.dataset,
            each.main,
            each.values[each.main],
            each.items,
            each.unit,
            untrained.get((each.task, each.dataset)),
        )
        for each in after
    )


def package_versions() -> tuple[str, ...]:
    """Name and version of gemel, Python and the packages used for training."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions = []
    for package in ("gemel", "torch", "transformers", "accelerate", "peft", "numpy"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return (*versions[:1], f"Python {platform.python_version()}", *versions[1:])


@dataclass(frozen=True)
class Summary:
    """The facts of a finished run."""

    name: str
    """Of the model: the last part of its folder."""
    base_model: str
    """As requested: a name or a folder."""
    objective: str
    settings: Mapping[str, Any]
    """Of the objective."""
    options: Mapping[str, Any]
    """The fields of `TrainOptions`."""
    data: tuple[DataSet, ...]
    steps: int
    best_step: int | None = None
    """The step whose weights were saved, if chosen by evaluation."""
    measured: tuple[MeasuredScores, ...] = ()
    dim: int | None = None
    max_length: int | None = None
    labels: tuple[str, ...] = ()
    """Of the classification head that is saved with the model; empty without one."""
    stopped: str = ""
    """Why the run ended before its last step."""
    kind: Literal["bi-encoder", "cross-encoder", "sparse", "late"] = "bi-encoder"
    versions: tuple[str, ...] = field(default_factory=package_versions)
    """Name and version of each package, such as "torch 2.13.0"."""

    @property
    def best(self) -> MeasuredScores | None:
        """The score of the run: the last one, which is the average if there are several data sets."""
        return self.measured[-1] if self.measured else None


def changed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from their defaults."""
    defaults = asdict(TrainOptions())
    return {name: value for name, value in options.items() if name in defaults and value != defaults[name]}


def setting_text(value: object) -> str:
    """A setting as text: lists without brackets, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
