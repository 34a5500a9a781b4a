"""Write the numbers of docs/explanation/fuzzing.md from fuzz/results.json and benchmarks/results/soak.json.

`python tools/docs/fuzz_page.py` writes the page, `--check` fails if it is stale.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "fuzzing.md"
FUZZ, SOAK = ROOT / "fuzz" / "results.json", ROOT / "benchmarks" / "results" / "soak.json"
CASES = ROOT / "fuzz" / "cases"


def fuzz_part(result: dict[str, Any]) -> str:
    cases = sorted(path.parent.name for path in CASES.glob("*/*"))
    how = f"Python: {result['engine']}; kernels: {result['kernels']}"
    share = f"{100 * result['line_coverage']:.0f} % of the lines of the modules that the targets name"
    lines = [
        f"On {result['date'][:10]}: {result['inputs']:,} inputs to {result['targets_run']} targets in "
        f"{result['seconds'] / 60:.0f} minutes ({how}). The inputs that were kept reach {share}. "
        f"{len(cases)} inputs that broke something are kept as cases.",
        *(["", result["note"]] if "note" in result else []),
        "",
        "| target | inputs | refused | seconds | lines reached | cases | open |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in result["targets"].items():
        covered = row["coverage"]
        reach = f"{100 * covered['lines'] / covered['of']:.0f} %" if "of" in covered else "–"
        reach = f"{covered['edges']} edges" if "edges" in covered else reach
        numbers = f"{row['inputs']:,} | {row['refused']:,} | {row['seconds']:.0f} | {reach}"
        lines.append(f"| `{name}` | {numbers} | {cases.count(name) or ''} | {len(row['findings']) or ''} |")
    return "\n".join(lines)


def soak_part(result: dict[str, Any]) -> str:
    requests, kills, documents = result["requests"], result["kills"], result["documents"]
    answers = {name: each["answers"].get("200", 0) for name, each in requests.items()}
    wrong = sum(each["wrong"] for each in requests.values())
    calm = result["server"]["without_kills"]
    steps = {name: f"{row['first_third']:.0f} to {row['last_third']:.0f}" for name, row in calm.items()}
    return (
        f"The run of {result['date'][:10]}, {result['minutes']:g} minutes with {result['model']}: "
        f"{answers['good']:,} answers to good clients and {answers['greedy']:,} to greedy ones, {wrong} wrong; "
        f"{kills['server']} kills of the server, ready again after at most "
        f"{max(kills['seconds_until_ready'], default=0):.1f} s, and {kills['writer']} of the writer; "
        f"{documents['acknowledged']} acknowledged documents, {documents['missing']} missing. "
        f"Peak memory {result['server']['peak_memory_mb']:.0f} MB. In the half without kills, medians of the first "
        f"and the last third: {steps['memory_mb']} MB, {steps['handles']} file handles, {steps['threads']} threads."
    )


def filled(page: str) -> str:
    for name, text in (("fuzz", fuzz_part(_read(FUZZ))), ("soak", soak_part(_read(SOAK)))):
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        page = re.sub(f"{start}.*?{end}", lambda _, new=f"{start}\n{text}\n{end}": new, page, flags=re.DOTALL)
    return page


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if "--check" in sys.argv and after != before:
        sys.exit("docs/explanation/fuzzing.md is stale: run python tools/docs/fuzz_page.py")
    PAGE.write_text(after, encoding="utf-8")
