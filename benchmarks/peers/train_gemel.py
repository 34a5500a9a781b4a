"""gemel's training on NLI rows: one JSON request as argument, one JSON result on standard output."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import gemel
from gemel.training import loop

SKIPPED = 3  # steps that warm up


def main(request: dict[str, Any]) -> dict[str, Any]:
    ends: list[float] = []
    busy: list[float] = []
    losses: list[float] = []
    step = loop.Loop._step

    def timed(self: loop.Loop, *arguments: Any) -> loop.Step:
        result = step(self, *arguments)
        ends.append(perf_counter())
        busy.append(process_time())
        losses.append(result.loss)
        return result

    loop.Loop._step = timed  # type: ignore[method-assign]
    gemel.train(
        request["model"],
        request["rows"],
        objective="classification",
        out=request["out"],
        max_steps=request["steps"],
        batch_size=request["batch"],
        learning_rate=request["learning_rate"],
        seed=request["seed"],
        threads=request["threads"],
        eval_steps=request["steps"],
        device="cpu",
        **request.get("options", {}),
    )
    if request.get("losses"):
        Path(request["losses"]).write_text(json.dumps(losses), encoding="utf-8")
    count = len(ends) - SKIPPED
    return {
        "folder": request["out"],
        "pairs_per_second": count * request["batch"] / (ends[-1] - ends[SKIPPED - 1]),
        "pairs_per_cpu_second": count * request["batch"] / (busy[-1] - busy[SKIPPED - 1]),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
