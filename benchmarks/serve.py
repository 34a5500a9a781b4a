"""The server under load, compared with other servers of the same model and the offline encoder, and with bad clients.

    python benchmarks/serve.py                      everything, about twenty minutes; ten of them with bad clients
    python benchmarks/serve.py --only gemel         without the peers
    python benchmarks/serve.py --quick              seconds; does everything work? no results file

The client shares the cores with the server, so a server's figure is what the machine can do, not what the server
could do alone. The offline encoder has both cores to itself.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gemel
from comparison_flags import WORK, comparison, environments_of, result_file
from crew import without_paths
from environments import InstallError
from machine import describe
from serve_bad import bad_clients, killed
from serve_client import groups, mixed, singles
from serve_systems import Server, ServerError, start
from texts import MANY, read_texts
from workers import say, surroundings

SYSTEMS = ("gemel", "st-fastapi", "infinity")
CLIENTS, LARGE = 64, 1000
GROUPS, GROUP = 8, 32  # clients, and the texts of each of their requests
TARGETS = {"throughput_of_offline": 0.80, "mixed_p95_ratio": 3.0, "groups_times_st-fastapi": 1.6}
# A fresh process, so that this one does not interfere. The best of three rounds.
_OFFLINE = """
import json, sys, time, gemel
model = gemel.load(sys.argv[1]); texts = json.load(sys.stdin); threads = int(sys.argv[2])
model.encode(texts[:200], threads=threads)
rounds = []
for _ in range(3):
    start = time.perf_counter(); model.encode(texts, threads=threads); rounds.append(time.perf_counter() - start)
print(len(texts) / min(rounds))
"""


def parser() -> argparse.ArgumentParser:
    parse = comparison(__doc__, "serve.json", data="sts/, clustering/")
    parse.add_argument("--model", default="all-MiniLM-L6-v2")
    parse.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parse.add_argument("--minutes", type=float, default=10.0, help="with bad clients")
    parse.add_argument("--only", default=",".join(SYSTEMS))
    return parse


def measure(server: Server, texts: list[str], seconds: float) -> dict[str, Any]:
    """One server: one client, 64 clients, 8 with 32 texts each, and single queries alongside requests of 1,000."""
    singles(server.port, server.model, texts[:200] * 100, clients=4, seconds=min(2.0, seconds))  # warm
    fresh = iter(f"{text} {n}" for n in range(10**6) for text in texts)  # no sentence is sent twice
    take = lambda count: [next(fresh) for _ in range(count)]  # noqa: E731
    alone = singles(server.port, server.model, take(20_000), clients=1, seconds=seconds / 2)
    crowd = singles(server.port, server.model, take(100_000), clients=CLIENTS, seconds=seconds)
    batches = groups(server.port, server.model, take(200_000), clients=GROUPS, size=GROUP, seconds=seconds)
    one, many = mixed(server.port, server.model, take(200_000), large=LARGE, seconds=seconds)
    return {
        "one_client": alone.report(),
        f"{CLIENTS}_clients": crowd.report(),
        f"{GROUPS}_clients_of_{GROUP}": batches.report(),
        "single_beside_large": one.report(),
        "large": many.report(),
        "mixed_p95_ratio": round(one.percentile(0.95) / alone.percentile(0.95), 2),
    }


def offline(model: Path, texts: list[str], threads: int) -> float:
    """Texts per second of `model.encode`."""
    done = subprocess.run(
        [sys.executable, "-c", _OFFLINE, str(model), str(threads)],
        input=json.dumps(texts), capture_output=True, text=True, check=True,
        env=surroundings(threads, ours=True),
    )  # fmt: skip
    return float(done.stdout)


def faults(
    server: Server, model: gemel.Model, texts: list[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Bad clients, then kill -9; the texts are few, so that their vectors can be compared."""
    some = texts[:500]
    expected = model.encode(some, on_long="truncate")
    actual = {"bad_clients": bad_clients(server, some, expected, minutes=options.minutes)}
    seconds = 6.0 if options.quick else 30.0
    actual["killed"] = killed(server, some, expected, seconds=seconds, times=1 if options.quick else 3)
    return actual


def run(options: argparse.Namespace) -> dict[str, Any]:
    model = gemel.load(options.model, offline=True)
    folder = Path(model.checkpoint.folder)
    data = read_texts(options.data, lambda some: [0] * len(some), 1, 0)
    texts = data.sets[MANY][: 500 if options.quick else None]
    work = WORK / "work"
    work.mkdir(parents=True, exist_ok=True)
    requested = environments_of(options)
    environments = replace(requested, install=requested.install and not options.quick)
    result: dict[str, Any] = {"texts": data.source, "threads": options.threads, "systems": {}}
    # As they are sent: with a number after them, which is one token more.
    result["offline_per_second"] = round(offline(folder, [f"{text} 0" for text in texts], options.threads), 1)
    say(f"offline: {result['offline_per_second']} texts/s")
    for name in options.only.split(","):
        try:
            server = start(name, folder, options.threads, environments, work)
        except (ServerError, InstallError) as error:
            result["systems"][name] = {"failed": without_paths(str(error))}
            say(f"{name}: FAILED, {error}")
            continue
        try:
            actual = result["systems"][name] = measure(server, texts, options.seconds)
            for load in (f"{CLIENTS}_clients", f"{GROUPS}_clients_of_{GROUP}"):
                say(f"{name}, {load}: {json.dumps(actual[load])}")
            if name == "gemel":
                actual |= faults(server, model, texts, options)
        finally:
            server.close()
    result["ratios"] = ratios(result)
    return result


def ratios(result: dict[str, Any]) -> dict[str, Any]:
    """The run in a few numbers, next to the targets."""
    systems = {name: actual for name, actual in result["systems"].items() if "failed" not in actual}
    if "gemel" not in systems:
        return {}
    speed = {name: actual[f"{CLIENTS}_clients"]["per_second"] for name, actual in systems.items()}
    speed = {name: rate for name, rate in speed.items() if rate}  # one that answered nothing does not count
    grouped = {
        name: actual[f"{GROUPS}_clients_of_{GROUP}"]["texts_per_second"] for name, actual in systems.items()
    }
    ours = systems["gemel"]
    right = [
        part["good"] if "good" in part else part["requests"] for part in (ours["bad_clients"], ours["killed"])
    ]
    actual = {
        "throughput_of_offline": round(speed["gemel"] / result["offline_per_second"], 3),
        "mixed_p95_ratio": ours["mixed_p95_ratio"],
        "wrong_answers": sum(part.get("WRONG", 0) for part in right),
        **{f"times_{name}": round(speed["gemel"] / speed[name], 2) for name in speed if name != "gemel"},
        **{
            f"groups_times_{name}": round(grouped["gemel"] / rate, 2)
            for name, rate in grouped.items()
            if name != "gemel" and rate and grouped["gemel"]
        },
    }
    actual["targets"] = {
        "throughput_of_offline": actual["throughput_of_offline"] >= TARGETS["throughput_of_offline"],
        "mixed_p95_ratio": not math.isnan(actual["mixed_p95_ratio"])
        and actual["mixed_p95_ratio"] <= TARGETS["mixed_p95_ratio"],
        "wrong_answers": actual["wrong_answers"] == 0,
        "alive": ours["bad_clients"]["alive"],
    }
    if (ratio := actual.get("groups_times_st-fastapi")) is not None:
        actual["targets"]["groups_times_st-fastapi"] = ratio >= TARGETS["groups_times_st-fastapi"]
    return actual


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.quick:
        options.seconds, options.minutes = 2.0, 0.1
    started = time.monotonic()
    whole = {"made": datetime.now(UTC).isoformat(timespec="seconds"), "machine": describe(), **run(options)}
    whole["seconds"] = round(time.monotonic() - started)
    if out := result_file(options):
        out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(whole["ratios"], indent=1))


if __name__ == "__main__":
    main()
