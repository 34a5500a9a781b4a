"""Write the tables of docs/explanation/scale.md from `gemel.texts.plan`; with `--check`, fail if they are stale."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from gemel.texts.plan import Plan, PlanQuestion, amount, committed, duration, moment, plan, size

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "scale.md"
SIZES = {"10 M": 1e7, "1 B": 1e9, "40 B": 4e10}
MACHINE = {"mean_tokens": 20, "cores": 64, "memory": "256GB", "price_core_hour": 0.04}


def plans() -> dict[str, Plan]:
    return {name: plan(PlanQuestion(texts=texts, **MACHINE)) for name, texts in SIZES.items()}


def costs_table() -> str:
    rows = []
    for name, made in plans().items():
        for part in made.parts:
            cells = [name, part.name, amount(part.core_hours), duration(part.hours), size(part.memory)]
            rows.append([*cells, size(part.disk) if part.disk else "–", amount(part.money)])
    return _table(["texts", "work", "core hours", "time", "memory", "disk", "cost"], rows)


def search_table() -> str:
    rows = []
    for name, made in plans().items():
        search = made.searching
        cells = [
            name,
            str(search.servers),
            moment(search.core_seconds),
            size(search.memory),
            size(search.mapped),
        ]
        rows.append([*cells, amount(search.money_month), moment(search.exact_core_seconds)])
    head = [
        "texts",
        "servers",
        "core time per query",
        "memory per server",
        "memory-mapped",
        "cost per month",
        "without an index",
    ]
    return _table(head, rows)


def limits_table() -> str:
    made = plans()
    rows = []
    for limit in made["10 M"].limits:
        over = [
            name
            for name, each in made.items()
            for other in each.limits
            if other.name == limit.name and other.reached
        ]
        kind = "breaks" if limit.hard else "slower"
        rows.append([limit.name, amount(limit.texts), kind, ", ".join(over) or "–"])
    return _table(["limit", "number of texts", "effect", "reached at"], rows)


def first_words() -> str:
    """For each size, what breaks first and what breaks next."""
    lines = []
    for name, made in plans().items():
        hard = [limit for limit in made.limits if limit.hard]
        first, *others = [limit for limit in hard if limit.reached] or hard[:1]
        start = "First" if first.reached else "Nothing breaks; first would be"
        text = f"- **{name}.** {start} {first.name}, at {amount(first.texts)} texts: {first.words}."
        also = ", ".join(f"{limit.name} ({amount(limit.texts)})" for limit in others)
        lines.append(f"{text} Then {also}." if also else text)
    return "\n".join(lines)


def checks_table() -> str:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from plan_checks import checks

    rows = []
    for check in checks():
        use = "sets a constant" if check.sets else f"not tested: {check.loose}" if check.loose else "checked"
        figures = [f"{check.measured:,.3g} {check.unit}", f"{check.predicted:,.3g}", f"{check.off:+.0%}"]
        rows.append([check.name, *figures, use])
    return _table(["run", "measured", "formula", "difference", "use"], rows)


def constants_table() -> str:
    from gemel.cli.flags import field_docs
    from gemel.texts.plan import Constants

    docs, constants = field_docs(Constants), committed().to_json()
    rows = []
    for name, value in constants.items():
        if name == "source":
            continue
        shown = (
            ", ".join(f"{key} {one:.3g}" for key, one in value.items())
            if isinstance(value, dict)
            else f"{value:.3g}"
        )
        rows.append([f"`{name}`", shown, docs[name]])
    return _table(["constant", "value", "meaning"], rows)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


PARTS = {
    "costs": costs_table,
    "search": search_table,
    "first": first_words,
    "limits": limits_table,
    "checks": checks_table,
    "constants": constants_table,
}


def page(before: str) -> str:
    for name, make in PARTS.items():
        pattern = rf"<!-- scale:{name} -->.*?<!-- /scale:{name} -->"
        block = f"<!-- scale:{name} -->\n{make()}\n<!-- /scale:{name} -->"
        before, count = re.subn(pattern, lambda _, block=block: block, before, flags=re.DOTALL)
        assert count == 1, f"scale.md has no markers for {name!r}"
    return before


def main(arguments: list[str]) -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if "--check" in arguments:
        if after != before:
            sys.stderr.write("stale: docs/explanation/scale.md. Run: python tools/docs/scale_page.py\n")
        return int(after != before)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
