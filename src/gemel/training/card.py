"""README.md of a trained model: what it is, how to use it, how it was made, what was measured, and its limits.

Everything in it was given or measured. What nobody knows, such as the language or the licence, is left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

from gemel.evaluation.report.tables import score_cell
from gemel.training.options import TrainOptions
from gemel.training.summary import DataSet, Measured, Summary, changed_options, said

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


def _row(each: Measured) -> str:
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
