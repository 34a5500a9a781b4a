"""Peak memory of encoding a million distinct sentences to disk, above the loaded model.

    python benchmarks/memory.py                     a million: more than half an hour on two cores
    python benchmarks/memory.py --count 20000       fewer

A killed run is resumed when started again; the peak of the earlier part is kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE / "peers"))  # memory_mb of the workers

PARTS = [
    part.split("|")
    for part in (
        "A nurse|The old baker|My neighbor|A young pilot|The goalkeeper|Our teacher"
        "|A tired waiter|The violinist|One of the twins|The night guard|A retired judge|Her cousin",
        "repaired|painted|sold|borrowed|photographed|forgot|found|described|returned|polished|hid|weighed",
        "the red bicycle|a wooden chair|an expensive camera|the broken radio|a small boat|two silver spoons"
        "|the green lamp|a leather bag|the heavy suitcase|a paper kite|an antique clock|the garden gate",
        "behind the station|near the harbour|in the kitchen|at the market|under the bridge|on the roof"
        "|beside the river|in the library|at the airport|outside the museum|in a quiet street|by the lake",
        "on Monday|before lunch|last winter|during the storm|after the concert|at midnight"
        "|yesterday|in early May|on her birthday|this morning|twice a week|without a word",
        "for a friend|to save money|by mistake|because it rained"
        "|as a surprise|for the first time|to win a bet|in a hurry",
    )
]
MOST = prod(len(part) for part in PARTS)


def sentence(number: int) -> str:
    """The sentence with this number; two numbers below `MOST` never give the same one."""
    words = []
    # A step that has no factor in common with MOST visits all of them and mixes the lengths.
    number = number * 1_000_003 % MOST
    for part in PARTS:
        number, position = divmod(number, len(part))
        words.append(part[position])
    return " ".join(words) + "."


def sentences(count: int) -> Iterator[str]:
    return (sentence(number) for number in range(count))


class Encoder:
    """The model with the options of this benchmark fixed."""

    def __init__(self, model: Any, threads: int) -> None:  # noqa: ANN401 - gemel.Model, imported in the child only
        self._model = model
        self._threads = threads

    def encode(self, texts: Sequence[str], /) -> Any:  # noqa: ANN401 - a float32 array of numpy
        return self._model.encode(list(texts), threads=self._threads, on_long="truncate")


def inside(options: argparse.Namespace) -> None:
    """The child process: only gemel and the sentences. Prints one JSON object."""
    from protocol import die_with_parent, memory_mb

    import gemel
    from gemel.files.rows import Row
    from gemel.texts.encode_folder import FolderProgress, encode_to_folder

    die_with_parent()
    model = gemel.load(options.model, precision=options.precision)
    Encoder(model, options.threads).encode(["hello world"])
    loaded = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here, loading is not part of it
    state = options.folder.with_suffix(".peak.json")
    before = json.loads(state.read_text())["above_model_mb"] if state.exists() else 0.0

    def note(progress: FolderProgress) -> None:
        above = max(before, memory_mb("VmHWM") - loaded)
        state.write_text(json.dumps({"above_model_mb": above, "rows": progress.rows}))

    rows = (Row(str(number), text) for number, text in enumerate(sentences(options.count)))
    start = time.perf_counter()
    result = encode_to_folder(
        Encoder(model, options.threads),
        rows,
        options.folder,
        fingerprint={"model": options.model, "precision": options.precision},
        progress=note,
    )
    seconds = time.perf_counter() - start
    print(json.dumps({
        "texts": result.rows,
        "encoded_now": result.encoded_now,
        "precision": options.precision,
        "threads": options.threads,
        "seconds": seconds,
        "model_mb": loaded,
        "above_model_mb": max(before, memory_mb("VmHWM") - loaded),
    }))  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--model", default="all-MiniLM-L6-v2", help="a name that gemel knows, or a folder")
    add("--count", type=int, default=1_000_000, help=f"sentences, at most {MOST:,}")
    add("--precision", choices=["float32", "int8"], default="int8", help="int8 ends sooner; memory is alike")
    add("--threads", type=int, default=2)
    add(
        "--folder",
        type=Path,
        help="where the vectors go; default: a scratch folder that is removed at the end",
    )
    add("--out", type=Path, default=HERE / "results" / "memory.json")
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if not 1 <= options.count <= MOST:
        print(f"memory: --count must be from 1 to {MOST:,}, got {options.count}", file=sys.stderr)
        return 2
    if options.inside:
        inside(options)
        return 0
    scratch = HERE / ".environments" / "work" / f"million-{options.count}-{options.precision}"
    folder = options.folder or scratch
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--inside", "--model", options.model, "--count", str(options.count)]
    command += ["--precision", options.precision, "--threads", str(options.threads), "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print("memory: the encoding process failed; start again to resume", file=sys.stderr)
        return 1
    actual = json.loads(done.stdout.splitlines()[-1])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(actual, indent=1) + "\n", encoding="utf-8")
    folder.with_suffix(".peak.json").unlink(missing_ok=True)
    if options.folder is None:
        shutil.rmtree(folder)
    rate = actual["encoded_now"] / actual["seconds"]
    above, model = actual["above_model_mb"], actual["model_mb"]
    print(
        f"{actual['texts']:,} sentences, {rate:,.0f}/s: {above:.0f} MB above the loaded model ({model:.0f} MB)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
