"""One table of the paper by one command, resumable.

    python -m reproduction.run 6 --scale small --data DATA --weights WEIGHTS
    python -m reproduction.run all --scale full --data DATA --weights WEIGHTS --glove GLOVE
    python -m reproduction.run rates --scale medium --data DATA --weights WEIGHTS    before the tables: rates.py

DATA has nli/, sts/, senteval/, ... as .tsv.gz; WEIGHTS has tinybert-4L-312/. GLOVE is a file or folder of word vectors
(docs/reference/baselines.md); without it the rows of GloVe are left out. Work is kept in --work: a finished run is not
repeated, a killed one resumes. After every row results/table-TABLE-SCALE.json is written again. `all --ready` runs
nothing and writes down what is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gemel.errors import GemelError
from reproduction.claims import CLAIMS, verdict
from reproduction.collapse import collapse
from reproduction.differences import differences
from reproduction.machine import describe
from reproduction.measuring import measure, ready
from reproduction.parts import Folders, Row
from reproduction.plan import TABLES
from reproduction.scales import SCALES, Scale
from reproduction.timing import TIMED

HERE = Path(__file__).parent
PACKAGES = ("gemel", "torch", "transformers", "numpy", "tokenizers", "scikit-learn")


def say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {line}\n")
    sys.stderr.flush()


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=(*TABLES, *TIMED, "collapse", "all"))
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--glove", type=Path, default=None)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--only", default="", help="rows whose label begins so, as '(u' or 'STSb'")
    parser.add_argument(
        "--ready", action="store_true", help="run nothing: write down what the work folder has"
    )
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument(
        "--most-seeds",
        type=int,
        default=0,
        help="add seeds to the lines of undecided claims, one at a time, up to this many",
    )
    return parser.parse_args(words)


def rows_of(table: str, scale: Scale, folders: Folders) -> list[Row]:
    """The plan, without GloVe where there is none."""
    return [row for row in TABLES[table](scale) if row.model.source != "glove" or folders.glove]


def run_table(
    table: str, scale: Scale, folders: Folders, out: Path, rows: list[Row], most_seeds: int = 0
) -> Path:
    """These rows of a table; one that fails is named and left out, the others are measured.

    Then the lines of claims that are still undecided get more seeds, one at a time, until there are `most_seeds`.
    """
    content, planned = _heading(table, scale), rows_of(table, scale, folders)
    content |= {"planned": len(planned), "rows": [], "failed": []}
    _measure_rows(content, rows, folders, scale.rounds, out)
    content["differences"] = differences(table, planned, content["rows"], folders)
    for seed in range(len(scale.seeds), most_seeds):
        scale = replace(scale, seeds=(*scale.seeds, seed))
        planned, lines = rows_of(table, scale, folders), undecided(table, content["differences"])
        more = [row for row in planned if row.seed == seed and row.label in lines]
        if not more:
            break
        content["planned"] += len(more)
        _measure_rows(content, more, folders, scale.rounds, out)
        content["differences"] = differences(table, planned, content["rows"], folders)
    return _write(content, out)


def undecided(table: str, measured: dict[str, Any]) -> set[str]:
    """The lines of the table's claims whose interval over seeds decides nothing yet."""
    lines: set[str] = set()
    for claim in CLAIMS:
        interval = measured.get(claim.name) if claim.table == table else None
        if interval is None or interval["over"] != "seeds":
            continue
        if interval["low"] is None or verdict(claim, interval["low"], interval["high"]) == "undecided":
            lines |= {*claim.better, *claim.worse}
    return lines


def _measure_rows(content: dict[str, Any], rows: list[Row], folders: Folders, rounds: int, out: Path) -> None:
    table = content["table"]
    for number, row in enumerate(rows, 1):
        begin = time.monotonic()
        try:
            result = measure(row, folders, rounds)
        except GemelError as error:
            content["failed"].append({"label": row.label, "seed": row.seed, "why": str(error)})
            say(f"table {table} {number}/{len(rows)} {row.label}: {error}")
            continue
        content["rows"].append(result)
        _write(content, out)
        first = next(reversed(result["scores"].values()))["value"]
        say(
            f"table {table} {number}/{len(rows)} {row.label} s{row.seed}: {first} ({time.monotonic() - begin:.0f} s)"
        )


def run(table: str, options: argparse.Namespace, folders: Folders) -> None:
    scale = SCALES[options.scale]
    if table in TIMED:
        if not options.ready:
            time_table(table, scale, folders, options.out)
        return
    if table == "collapse":
        if not options.ready:
            run_collapse(scale, folders, options.out)
        return
    rows = [row for row in rows_of(table, scale, folders) if row.label.startswith(options.only)]
    rows = [row for row in rows if ready(row, folders)] if options.ready else rows
    if rows:
        run_table(table, scale, folders, options.out, rows, options.most_seeds)


def time_table(table: str, scale: Scale, folders: Folders, out: Path) -> Path:
    """Speeds are measured again each time: they belong to a machine and a moment."""
    content = _heading(table, scale)
    content["rows"] = TIMED[table](scale, folders)
    say(f"table {table}: {len(content['rows'])} rows")
    return _write(content, out)


def run_collapse(scale: Scale, folders: Folders, out: Path) -> Path:
    """Short trainings whose journals are the result."""
    content = {**_heading("collapse", scale), "rows": []}
    for row in collapse(scale, folders):
        content["rows"].append(row)
        _write(content, out)
        last = row["steps"][-1]
        say(f"collapse {row['label']} s{row['seed']}: {last['score']}, rank {last['effective_rank']}")
    return _write(content, out)


def _heading(table: str, scale: Scale) -> dict[str, Any]:
    versions = {name: version(name) for name in PACKAGES}
    command = f"python -m reproduction.run {table} --scale {scale.name}"
    return {
        "table": table,
        "scale": scale.name,
        "command": command,
        "machine": describe(),
        "versions": versions,
    }


def _write(content: dict[str, Any], out: Path) -> Path:
    target = out / f"table-{content['table']}-{content['scale']}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return target


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    folders = Folders(
        str(options.data.resolve()),
        str(options.weights.resolve()),
        str(options.work.resolve()),
        str(options.glove.resolve()) if options.glove else "",
        options.threads,
    )
    try:
        # Rates are chosen once, by a command of their own; the plan reads them when it is imported.
        tables = [table for table in (*TABLES, "collapse", *TIMED) if table != "rates"]
        for table in tables if options.table == "all" else [options.table]:
            run(table, options, folders)
    except GemelError as error:
        sys.stderr.write(f"reproduction: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
