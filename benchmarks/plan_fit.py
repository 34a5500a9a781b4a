"""The constants of `gemel plan` out of committed results: src/gemel/texts/plan_costs.json.

    python benchmarks/plan_fit.py            write it
    python benchmarks/plan_fit.py --check    fail when it is stale

Encoding comes from encode-10000.json (seconds) and scale.json (minutes), pairs and searches from pairs.json, the index
from the two smaller sizes of plan.json. What is left over (stsb-test, 200,000 pairs, an index of
200,000) is what the model is checked against.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
OUT = Path(__file__).parent.parent / "src" / "gemel" / "texts" / "plan_costs.json"
LISTS = re.compile(r"IVF(\d+),(?:PQ(\d+)x4fs|SQ8) \((\d+) lists asked\)")


def read(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def used(time: dict[str, float]) -> float:
    """Core-seconds."""
    return time["cpu"] + time["kernel"]


def encoding() -> dict[str, float]:
    """Best rounds of seconds are faster than runs of minutes on the same machine: float32 lies between the two.

    The ratio of int8 to float32 is that of the interleaved runs.
    """
    short, result = _short_rounds(), read("scale")
    from gemel.texts.plan import PlanQuestion

    work = result["count"] * PlanQuestion(texts=result["count"]).flop(result["mean_tokens"])
    long = work / (2 * min(result["results"]["encode"]["alone"]))
    sustained = math.sqrt(long / short["float32"])
    return {name: rate * sustained for name, rate in short.items()}


def _short_rounds() -> dict[str, float]:
    result = read("encode-10000")
    work = result["texts"]["stsb-10000"]["gflop_distinct"] * 1e9
    systems = {"float32": "gemel", "int8": "gemel-int8"}
    times = {
        name: min(result["systems"][system]["rates"]["stsb-10000"]["seconds"])
        for name, system in systems.items()
    }
    return {name: work / (seconds * result["threads"]) for name, seconds in times.items()}


def scanning() -> dict[str, float]:
    result = read("pairs")
    cores, dim = result["threads"], 384

    def seconds(case: str, system: str = "gemel") -> float:
        return result["cases"][case]["systems"][system]["best"] * cores

    triangle = 50_000 * 49_999 / 2 * dim
    small, large = (seconds(case) / 1000 for case in ("search-50k", "search-1m"))
    row = (large - small) / 950_000
    return {
        "pair_products": triangle / seconds("pairs-50k"),
        "search_products": dim / row,
        "search_seconds": small - 50_000 * row,
    }


def indexing() -> dict[str, float]:
    from gemel.texts.plan import ROUNDS, TRAINED_ON

    result = read("plan")
    dim, block = result["dim"], result["block"]
    first, second, third = result["sizes"]
    rows = second["rows"] - first["rows"]

    def layout(at: dict[str, Any]) -> tuple[int, float, float]:
        lists, codes, visited = LISTS.fullmatch(at["layout"]).groups()
        return int(lists), int(codes) / 2 if codes else dim, at["rows"] / int(lists) * int(visited)

    rate = max(at["list_products"] for at in result["sizes"])
    look = (used(third["look"]) - used(first["look"])) / third["looks"] / (third["rows"] - first["rows"])
    write, build, code = [], [], layout(first)[1]
    for at in (first, second):
        count, lists = at["rows"], layout(at)[0]
        write.append((used(at["write"]) - count / block * count * look) / count)
        products = (ROUNDS * TRAINED_ON * lists + count) * lists * dim
        build.append((used(at["build"]) - products / rate) / count)
    codes = [layout(at)[2] for at in (first, second, third)]
    ask = [used(at["ask"]) / at["queries"] - layout(at)[0] * dim / rate for at in (first, second, third)]
    code_seconds = (ask[2] - ask[0]) / (codes[2] - codes[0])
    memory = (third["open_mb"] - first["open_mb"]) * 1e6 / (third["rows"] - first["rows"])
    disk = (second["bytes"] - first["bytes"]) / rows
    text = (second["text_bytes"] - first["text_bytes"]) / rows
    return {
        "list_products": rate,
        "write_seconds": sum(write) / 2,
        "merge_seconds": used(third["write"]) / third["rows"] - sum(write) / 2 - third["rows"] / block * look,
        "look_seconds": look,
        "build_seconds": sum(build) / 2,
        "ask_seconds": ask[0] - codes[0] * code_seconds,
        "code_seconds": code_seconds,
        "asked_at": third["rows"],
        "asked_codes": codes[2],
        "asked_power": math.log(codes[2] / codes[0]) / math.log(third["rows"] / first["rows"]),
        "code_bytes": code / dim,
        "row_memory": memory - code,
        "base_memory": third["open_mb"] * 1e6 - third["rows"] * memory + read("memory")["model_mb"] * 1e6,
        "row_disk": disk - 3 * (4 * dim + text) - code,
        "fragment_bytes": third["manifest_bytes"] / third["fragments"],
    }


def constants() -> dict[str, Any]:
    scans = scanning()
    name = read("pairs")["machine"]["processor"]
    where = "benchmarks/results (encode-10000, scale, pairs, plan)"
    made: dict[str, Any] = {"source": f"committed {where}, measured on one and two cores of {name}"}
    made["encode_flop"] = {name: float(f"{rate:.4g}") for name, rate in encoding().items()}
    numbers = {**scans, **indexing()}
    return made | {name: float(f"{value:.4g}") for name, value in numbers.items()}


def main(arguments: list[str]) -> int:
    text = json.dumps(constants(), indent=1) + "\n"
    if "--check" in arguments:
        if not OUT.exists() or OUT.read_text(encoding="utf-8") != text:
            print("stale: scale.json. Run: python benchmarks/plan_fit.py", file=sys.stderr)
            return 1
        return 0
    OUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
