"""README.md from results/*.json: tables next to those of the paper, figures, a verdict for each claim.

python -m reproduction.render              write README.md and figures/
python -m reproduction.render --check      fail if README.md is not what the results say
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from reproduction import rates
from reproduction.claims import CLAIMS, verdict
from reproduction.figures import FIGURES, draw
from reproduction.pages import PARTS, grid
from reproduction.plan import TABLES
from reproduction.scales import SCALES
from reproduction.settings import sentence
from reproduction.stored_results import HERE, RESULTS, Content, read_results
from reproduction.timed_claims import timed_rows

INTRO = HERE / "intro.md"
NOTES = HERE / "notes"
"""A text file for each table, without numbers."""
COUNTED = {("3", "seeds"): "folds", ("5", "pairs"): "texts"}
"""What an interval covers other than seeds and pairs."""


def at_other_rates(table: str, content: Content | None) -> list[str]:
    """The lines whose training, or that of a model before it, had another learning rate than the plan has now."""
    if content is None or table not in TABLES:
        return []
    planned = {row.label: rates.of_model(row.model) for row in TABLES[table](SCALES[content["scale"]])}
    used = {
        entry["label"]: rates.of_commands([*entry.get("before", []), entry["command"]])
        for entry in content["rows"]
    }
    return [label for label, own in used.items() if label in planned and own != planned[label]]


def claims_table(result: dict[str, Content]) -> str:
    body = []
    other = {claim.table: at_other_rates(claim.table, result.get(claim.table)) for claim in CLAIMS}
    for claim in CLAIMS:
        measured = result.get(claim.table, {}).get("differences", {}).get(claim.name)
        if not measured:
            body.append([claim.table, claim.text, claim.paper, "", "not run"])
            continue
        if measured["low"] is None:
            cell = f"{measured['difference']:+.2f}, one seed, no interval"
            body.append([claim.table, claim.text, claim.paper, cell, "**undecided**"])
            continue
        low, high = measured["low"], measured["high"]
        over = f"{measured['count']:,} {COUNTED.get((claim.table, measured['over']), measured['over'])}"
        cell = f"{measured['difference']:+.2f} [{low:+.2f}, {high:+.2f}], {over}"
        known = f"**{verdict(claim, low, high)}**"
        if {*claim.better, *claim.worse} & {*other[claim.table]}:
            known = "none: not at the chosen rate"
        body.append([claim.table, claim.text, claim.paper, cell, known])
    body += timed_rows(result)
    return grid(["table", "claim", "the paper", "ours: difference, 95 % interval", "verdict"], body)


def part(table: str, result: dict[str, Content]) -> str:
    title, write = PARTS[table]
    content = result.get(table)
    lines = [f"## {title}\n"]
    note = NOTES / f"{table}.md"
    if note.exists():
        lines.append(note.read_text(encoding="utf-8"))
    if content is None:
        lines.append(
            f"Not run yet: `python -m reproduction.run {table} --scale full --data DATA --weights WEIGHTS`.\n"
        )
        return "\n".join(lines)
    lines.append(
        f"{sentence(table, content['scale'])}{_minutes(content)} `{content['command']}`{_progress(content)}\n"
    )
    if other := at_other_rates(table, content):
        names = ", ".join(f"`{label}`" for label in other)
        lines.append(f"To be run again, because another learning rate was chosen since: {names}.\n")
    lines.append(write(content))
    if table in FIGURES:
        name = FIGURES[table][0]
        lines.append(f"![{title}](figures/{name}.png)\n")
    return "\n".join(lines)


def _minutes(content: Content) -> str:
    """How long its trainings took, each counted once."""
    trainings = [
        row
        for row in content["rows"]
        if row.get("command", "").startswith(("gemel train", "gemel distill")) and row["seconds"]
    ]
    seconds = {row["command"]: row["seconds"] for row in trainings}
    if len(seconds) == 1:
        return f" The training took {max(seconds.values()) / 60:.1f} minutes."
    if not seconds:
        return ""
    middle, longest = (f"{take(seconds.values()) / 60:.1f}" for take in (median, max))
    return f" Of {len(seconds)} trainings, the median took {middle} minutes and the longest {longest}."


def _progress(content: Content) -> str:
    planned, there = content.get("planned"), len(content["rows"])
    return f": {there} of {planned} runs so far" if planned and there < planned else ""


def page(result: dict[str, Content]) -> str:
    heading = INTRO.read_text(encoding="utf-8")
    verdicts = (
        "## The claims\n\n" + (NOTES / "claims.md").read_text(encoding="utf-8") + "\n" + claims_table(result)
    )
    return "\n".join([heading, verdicts, *(part(table, result) for table in PARTS)])


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args(words)
    result, target = read_results(options.results), options.out / "README.md"
    text = page(result)
    if options.check:
        fresh = target.exists() and target.read_text(encoding="utf-8") == text
        sys.stderr.write(
            "" if fresh else f"{target} is not what the results say: python -m reproduction.render\n"
        )
        return 0 if fresh else 1
    target.write_text(text, encoding="utf-8")
    draw(result, options.out / "figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
