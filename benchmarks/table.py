"""Write the tables of docs/reference/speed.md and the README from results/encode.json, each between its two markers.

python benchmarks/table.py            print them
python benchmarks/table.py --write    put them in
python benchmarks/table.py --check    exit 1 when a page says something else
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from targets import Results, best_peer, judge, limit_share, rate

HERE = Path(__file__).parent
SUMMARY = ("gemel", "gemel-bfloat16", "gemel-int8", "st-torch", "fastembed", "ct2", "ct2-int8")
MET = {True: "met", False: "**not met**", None: "–"}


def render(results: Results) -> str:
    """The whole block: machine, speed, other costs, targets."""
    parts = [_machine(results), _speed(results), _notes(results), _costs(results), _targets(results)]
    return "\n\n".join(part for part in parts if part)


def summary(results: Results) -> str:
    """One row per well-known system: speed on the short texts, one query, the start, memory."""
    texts = next(iter(results["texts"]))
    rows = [["", "texts/s", "× ST torch", "one query, ms", "start to first vector, s", "Spearman", "peak MB"]]
    for name in SUMMARY:
        entry = results["systems"].get(name, {"failed": "not run"})
        if entry.get("failed"):
            continue
        mine, base = rate(results, name, texts), rate(results, "st-torch", texts)
        query = entry.get("latency_ms", {}).get("p50")
        start = results["start"].get(name, {}).get("best_seconds")
        cells = ((mine, ",.0f"), (query, ".1f"), (start, ".2f"), (entry.get("spearman"), ".2f"))
        shown = ["–" if value is None else format(value, form) for value, form in cells]
        peak = "–" if entry.get("peak_mb") is None else f"{entry['peak_mb']:,.0f}"
        rows.append([entry["title"], shown[0], _times(mine, base), *shown[1:], peak])
    counted = results["texts"][texts]
    head = (
        f"{results['machine']['processor']}, {results['threads']} threads; {counted['texts']:,} sentences ({texts}), "
        f"best of {counted['rounds']}."
    )
    return f"{head}\n\n{grid(rows)}"


def grid(rows: list[list[str]]) -> str:
    """A Markdown table, padded so that it also reads well on a terminal; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| "
        + " | ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    rule = (
        "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    )
    return "\n".join([lines[0], rule, *lines[1:]])


def _machine(results: Results) -> str:
    machine = results["machine"]
    quick = " A quick trial: the numbers say nothing about speed." if results["quick"] else ""
    return (
        f"{machine['processor']} ({', '.join(machine['flags'])}), {results['threads']} threads, "
        f"{machine['memory_gb']:.0f} GB, {machine['system']}, Python {machine['python']}; "
        f"{results['date'][:10]}; {results.get('model', 'all-MiniLM-L6-v2')}, at most {results['max_length']} tokens; "
        f"texts: {results['source']}.{quick}"
    )


def _speed(results: Results) -> str:
    sets = results["texts"]
    head = ["texts/s"]
    for name, counted in sets.items():
        head += [f"{name} (best of {counted['rounds']})", "× ST torch", "× best peer"]
    rows = [[*head, "Spearman", "peak MB"]]
    for name, entry in sorted(results["systems"].items(), key=lambda item: _sort_key(item[1])):
        if entry.get("failed") or entry.get("same_as"):
            continue
        row = [entry["title"] + (" ⚠" if entry.get("wrong") else "")]
        for texts in sets:
            mine, base = rate(results, name, texts), rate(results, "st-torch", texts)
            peer = best_peer(results, entry["precision"], texts)
            best = rate(results, peer, texts) if peer else None
            row += [
                "–" if mine is None else f"{mine:,.0f}" if mine >= 100 else f"{mine:.1f}",
                _times(mine, base),
                _times(mine, best),
            ]
        score, peak = entry.get("spearman"), entry.get("peak_mb")
        row += ["–" if score is None else f"{score:.2f}", "–" if peak is None else f"{peak:,.0f}"]
        rows.append(row)
    return grid(rows)


def _sort_key(entry: Results) -> tuple[int, int]:
    precisions, roles = ["float32", "bfloat16", "int8"], ["ours", "peer", "reference"]
    return precisions.index(entry["precision"]), roles.index(entry["role"])


def _times(above: float | None, below: float | None) -> str:
    return f"{above / below:.2f}" if above is not None and below else "–"


def _notes(results: Results) -> str:
    notes = []
    for name, limit in results["sgemm"].items():
        shares = {t: s[name] for t in results["texts"] if name in (s := limit_share(results, t))}
        if limit.get("gflops"):
            part = ", ".join(f"{texts} {share:.0%}" for texts, share in shares.items())
            tail = f"; gemel float32 reaches {part}" if part else ""
            notes.append(f"- sgemm limit by {name}: {limit['gflops']:.0f} GFLOP/s{tail}")
    for texts, counted in results["texts"].items():
        if counted["texts"] > counted["distinct"]:
            twice = counted["texts"] - counted["distinct"]
            notes.append(
                f"- {texts}: {twice} texts are repeats, which gemel computes once and the peers again"
            )
    for name, entry in results["systems"].items():
        if entry.get("failed"):
            notes.append(f"- {name} failed: {entry['failed']}")
        if entry.get("same_as"):
            notes.append(f"- {name} is what {entry['same_as']} already runs")
        if entry.get("wrong"):
            notes.append(
                f"- ⚠ {name}: its vectors differ from {results['reference']}'s, so its speed does not count"
            )
    return "\n".join(notes)


def _costs(results: Results) -> str:
    rows = [["", "one query p50, ms", "p95, ms", "start to first vector, s", "its peak MB"]]
    for name, entry in results["systems"].items():
        latency, start = entry.get("latency_ms", {}), results["start"].get(name, {})
        if not latency and not start.get("best_seconds"):
            continue
        cells = [latency.get("p50"), latency.get("p95"), start.get("best_seconds"), start.get("peak_mb")]
        forms = ["{:.2f}", "{:.2f}", "{:.2f}", "{:.0f}"]
        rows.append(
            [entry["title"], *("–" if c is None else f.format(c) for c, f in zip(cells, forms, strict=True))]
        )
    return grid(rows) if len(rows) > 1 else ""


def _targets(results: Results) -> str:
    rows = [["target", "wanted", "measured", ""]]
    rows += [[t.what, t.wanted, t.measured, MET[t.met]] for t in judge(results)]
    return grid(rows)


def put(page: str, name: str, block: str) -> str:
    """The page with the block of that name replaced."""
    start, end = f"<!-- benchmark:{name} -->", f"<!-- /benchmark:{name} -->"
    first, last = page.find(start), page.find(end)
    if first < 0 or last < first:
        raise ValueError(
            f"the page has no block {start} ... {end}: add the two lines where the table belongs"
        )
    return f"{page[: first + len(start)]}\n{block}\n{page[last:]}"


def read_results(path: Path) -> Results:
    """The results of encode.py; with a million sentences from memory.py, if that was run separately."""
    results: Results = json.loads(path.read_text(encoding="utf-8"))
    memory = path.with_name("memory.json")
    if results.get("million") is None and memory.exists():
        results["million"] = json.loads(memory.read_text(encoding="utf-8"))
    return results


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=HERE / "results" / "encode.json")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "reference" / "speed.md")
    parser.add_argument("--readme", type=Path, default=HERE.parent / "README.md")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="put the tables into the pages")
    what.add_argument("--check", action="store_true", help="exit 1 when a page has another table")
    options = parser.parse_args(arguments)
    try:
        results = read_results(options.results)
        blocks = [(options.page, "encode", render(results)), (options.readme, "summary", summary(results))]
        if not options.write and not options.check:
            print("\n\n".join(block for _, _, block in blocks))
            return 0
        pages = [(path, path.read_text(encoding="utf-8"), name, block) for path, name, block in blocks]
        stale = [(path, new) for path, old, name, block in pages if (new := put(old, name, block)) != old]
    except (OSError, ValueError) as error:
        print(f"table: {error}", file=sys.stderr)
        return 2
    if options.write:
        for path, new in stale:
            path.write_text(new, encoding="utf-8")
        return 0
    for path, _ in stale:
        print(f"table: {path.name} is not what the results say: run table.py --write", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
