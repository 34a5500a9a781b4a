"""README.md of a student: a section in the card that training wrote, or a short card of its own."""

from __future__ import annotations

import json

from gemel.distillation.result import Distilled

_BEFORE = "## Limits"  # the section that a card of training has after its scores


def describe(found: Distilled) -> None:
    """Write it."""
    path = found.folder / "README.md"
    if found.trained is None or not path.is_file():
        path.write_text(_card(found), encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    if "## Distillation" not in text:
        path.write_text(text.replace(_BEFORE, f"{_section(found)}\n\n{_BEFORE}", 1), encoding="utf-8")


def _section(found: Distilled) -> str:
    learnt = f" on {found.learnt_from}" if found.learnt_from else ""
    lines = [f"Made from `{found.teacher.name}` by `gemel distill --how {found.how}`{learnt}."]
    lines += [f"- {note}" for note in found.notes]
    lines += [f"- teacher {found.teacher.summary()}", f"- student {found.student.summary()}"]
    if found.after is not None:
        where = "texts that were held back" if found.held_out else "texts that it learnt from"
        lines += ["", f"Agreement with the teacher, Spearman × 100, on pairs of {where}:", ""]
        lines += ["| | near pairs | random pairs | all |", "|---|---|---|---|"]
        for name, agreement in (("before", found.before), ("after", found.after)):
            if agreement is not None:
                cells = [agreement.near, agreement.random, agreement.all]
                shown = " | ".join("-" if cell is None else f"{cell:.1f}" for cell in cells)
                lines.append(f"| {name} | {shown} |")
    return "\n".join(["## Distillation", "", *lines])


def _card(found: Distilled) -> str:
    name = json.dumps(found.folder.name, ensure_ascii=False)
    front = ["---", "library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "tags:"]
    front += ["- sentence-similarity", "- sentence-transformers", "- gemel", "---"]
    use = f'```python\nimport gemel\n\nvectors = gemel.load({name}).encode(["A man plays a guitar."])\n```'
    what = f"A sentence encoder of {found.dim} dimensions, to be compared by cosine."
    return "\n\n".join(["\n".join(front), f"# {found.folder.name}", what, use, _section(found)]) + "\n"
