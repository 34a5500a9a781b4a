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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gemel.errors import GemelError
from gemel.files.atomic import atomic_file
from gemel.files.machine import cores_per_process
from reproduction.claims import CLAIMS, verdict
from reproduction.collapse import observe, trials
from reproduction.differences import TEACHER_LINE, add_shares, differences
from reproduction.machine import describe
from reproduction.making import commands
from reproduction.measuring import measure, ready
from reproduction.parts import Folders, Row
from reproduction.plan import TABLES
from reproduction.scales import SCALES, Scale
from reproduction.timing import TIMED

HERE = Path(__file__).parent
Result = dict[str, Any]
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
    parser.add_argument("--threads", type=int, default=0, help="of a run; 0: all cores, shared by --jobs")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="runs at a time; two with one thread each finish sooner than one after the other with two",
    )
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
    stored = stored_rows(content, planned, out)
    _measure_rows(content, rows, folders, scale.rounds, out, stored)
    content["differences"] = differences(table, planned, content["rows"], folders)
    for seed in range(len(scale.seeds), most_seeds):
        scale = replace(scale, seeds=(*scale.seeds, seed))
        planned, lines = rows_of(table, scale, folders), undecided(table, content["differences"])
        more = [row for row in planned if row.seed == seed and row.label in lines]
        if not more:
            break
        content["planned"] += len(more)
        _measure_rows(content, more, folders, scale.rounds, out, stored)
        content["differences"] = differences(table, planned, content["rows"], folders)
    if table == "student":
        add_shares(planned, content["rows"], folders, scale.rounds)
    _keep_unmeasured(content, planned, stored)
    return _write(content, out)


@dataclass(frozen=True)
class Stored:
    """Rows of earlier results files of this scale, which are used again where the work folder is gone.

    Not the lines of claims without seeds: these compare single pairs, which only the work folder has.
    """

    own: dict[tuple[str, str, int], Result]
    """Of this table, by label, suite and seed."""
    others: list[Result]
    """Of other tables."""
    compared: set[str]
    """Lines that are compared pair by pair."""
    differences: dict[str, Any]
    """Of this table's claims."""

    def find(self, row: Row, folders: Folders) -> Result | None:
        """The measurement of a model of the same commands, on the same suite."""
        if row.label in self.compared:
            return None
        own = self.own.get(_planned_key(row))
        entries = [own] if own else []
        if not (row.after or row.documents):  # which no command shows
            wanted = (row.suite.name, row.pooling)
            entries += [
                entry
                for entry in self.others
                if (entry["suite"], entry.get("pooling", "")) == wanted and entry["command"]
            ]
        for entry in entries:
            if _same_commands(entry, row, folders):
                return {**entry, "label": row.label, "seed": row.seed}
        return None


def stored_rows(content: dict[str, Any], plan: list[Row], out: Path) -> Stored:
    seeds: dict[str, set[int]] = {}
    for row in plan:
        seeds.setdefault(row.label, set()).add(row.seed)
    claims = [claim.better + claim.worse for claim in CLAIMS if claim.table == content["table"]]
    compared = {
        line for lines in claims if all(len(seeds.get(each, ())) == 1 for each in lines) for line in lines
    }
    if content["table"] == "student":
        compared.add(TEACHER_LINE)
    path = _path(content, out)
    own = {_key(entry): entry for entry in _entries(path)}
    earlier = json.loads(path.read_text(encoding="utf-8")).get("differences", {}) if path.exists() else {}
    paths = [_path({**content, "table": table}, out) for table in TABLES if table != content["table"]]
    others = [entry for path in paths for entry in _entries(path)]
    return Stored(own, others, compared, earlier)


def _keep_unmeasured(content: dict[str, Any], planned: list[Row], stored: Stored) -> None:
    """Rows of the plan that this call left out (`--only`, `--ready`) stay, in the order of the plan."""
    result = {_key(entry): entry for entry in [*content["rows"], *content["failed"]]}
    left = [_planned_key(row) for row in planned if _planned_key(row) not in result]
    if not left:
        return
    measured = {_key(entry): entry for entry in content["rows"]}
    rows = {key: stored.own[key] for key in left if key in stored.own} | measured
    content["rows"] = [rows[key] for key in map(_planned_key, planned) if key in rows]
    content["differences"] = {**stored.differences, **content["differences"]}


def _planned_key(row: Row) -> tuple[str, str, int]:
    return row.label, row.suite.name, row.seed


def _key(entry: Result) -> tuple[str, str, int]:
    return entry["label"], entry.get("suite", ""), entry["seed"]


def _entries(path: Path) -> list[Result]:
    rows: list[Result] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return rows


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


def _measure_rows(
    content: dict[str, Any],
    rows: list[Row],
    folders: Folders,
    rounds: int,
    out: Path,
    stored: Stored,
) -> None:
    """`folders.jobs` rows at a time; the results have them in the order of the plan."""
    table = content["table"]

    def attempt(row: Row) -> dict[str, Any]:
        begin = time.monotonic()
        earlier = None if ready(row, folders) else stored.find(row, folders)
        if earlier:
            return earlier
        try:
            result = measure(row, folders, rounds)
        except GemelError as error:
            say(f"table {table} {row.label}: {error}")
            return {"label": row.label, "suite": row.suite.name, "seed": row.seed, "why": str(error)}
        first = next(reversed(result["scores"].values()))["value"]
        say(f"table {table} {row.label} s{row.seed}: {first} ({time.monotonic() - begin:.0f} s)")
        return result

    with ThreadPoolExecutor(folders.jobs) as pool:
        for result in pool.map(attempt, rows):
            content["failed" if "why" in result else "rows"].append(result)
            done = {_key(each) for each in content["rows"]}
            # A run that is killed keeps the rows that it did not reach, so that the next one finds them.
            left = [entry for key, entry in stored.own.items() if key not in done]
            _write({**content, "rows": [*content["rows"], *left]}, out)


def _same_commands(entry: Result, row: Row, folders: Folders) -> bool:
    """Whether an entry of the results was made as the plan says, from the first model on."""
    return commands(row.model, folders) == [*entry.get("before", []), entry.get("command")]


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
    """Short trainings whose journals are the result; `folders.jobs` at a time. Rows that are there are kept."""
    content = {**_heading("collapse", scale), "rows": []}
    path = _path(content, out)
    stored = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    with ThreadPoolExecutor(folders.jobs) as pool:
        for row in pool.map(lambda trial: observe(trial, scale, folders, stored), trials(scale)):
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


def _path(content: dict[str, Any], out: Path) -> Path:
    return out / f"table-{content['table']}-{content['scale']}.json"


def _write(content: dict[str, Any], out: Path) -> Path:
    target = _path(content, out)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as part:
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return target


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    folders = Folders(
        str(options.data.resolve()),
        str(options.weights.resolve()),
        str(options.work.resolve()),
        str(options.glove.resolve()) if options.glove else "",
        options.threads or cores_per_process(options.jobs),
        options.jobs,
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
