"""A model of a plan is made by one gemel command; a finished one is kept, a killed one is resumed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gemel.errors import InputError
from reproduction.derived import files_of
from reproduction.locks import alone
from reproduction.parts import DEVELOPMENT, TEACHER, Folders, Made

DEV = "sts/stsb-dev.tsv.gz"
RECORD = "made.json"
"""How a model was made; written last."""


def source_of(model: Made, folders: Folders) -> str:
    """What gemel is given: a folder, a published model's name, or a baseline."""
    if model.verb:
        return str(Path(folders.work) / model.name)
    if model.source == "start":
        return str(Path(folders.weights) / model.name)
    return f"glove:{folders.glove}" if model.source == "glove" else model.source


def command(model: Made, folders: Folders) -> list[str]:
    """The words after `gemel`, without --resume and --threads, which depend on the machine."""
    assert model.rows, f"{model.name} has nothing to learn from"
    files = [str(path) for path in files_of(model.rows, folders)]
    out = ["-o", source_of(model, folders)]
    flags = [_with_path(flag, folders) for flag in model.flags]
    data = [word for file in files for word in ("--data", file)]
    seed = ["--seed", str(model.seed)]
    if model.verb == "distill":
        student = ["--student", source_of(model.start, folders)] if model.start else []
        # All students of the same texts read the vectors that the first one computes.
        vectors = ["--teacher-vectors", str(Path(folders.work) / f"teacher-{model.rows.name}")]
        return ["distill", TEACHER, *student, *flags, *data, *seed, *vectors, *out]
    assert model.start, f"{model.name} has nothing to start from"
    start = source_of(model.start, folders)
    if model.verb == "postprocess":
        return ["postprocess", start, *flags, *data, "--text-column", "text", *out]
    # Seven of STSb's development pairs are in its training set, as published: the doctor reports it, --force continues.
    return ["train", *files, "--model", start, *flags, *seed, "--force", *out]


def _with_path(flag: str, folders: Folders) -> str:
    if flag == "{dev}":
        return str(Path(folders.data) / DEV)
    return str(files_of(DEVELOPMENT, folders)[0]) if flag == "{development}" else flag


def command_line(words: list[str], folders: Folders) -> str:
    """The command as a reader types it, with their own folders."""
    line = " ".join(["gemel", *(f"'{word}'" if set(word) & set("|* ") else word for word in words)])
    for path, short in ((folders.work, "work"), (folders.data, "data"), (folders.weights, "weights")):
        line = line.replace(str(path), short)
    return line


def commands(model: Made, folders: Folders) -> list[str]:
    """Of the model and of those that it starts from, the first one first."""
    if not model.verb:
        return []
    before = commands(model.start, folders) if model.start else []
    return [*before, command_line(command(model, folders), folders)]


def make(model: Made, folders: Folders) -> dict[str, Any]:
    """The record of how it was made: command, seconds, seed. Makes it, and what it starts from, if it is not there."""
    if not model.verb:
        return {"command": "", "seconds": 0.0, "seed": 0}
    if model.start:
        make(model.start, folders)
    with alone(folders, model.name):
        return _made(model, folders)


def _made(model: Made, folders: Folders) -> dict[str, Any]:
    out = Path(folders.work) / model.name
    record, words = out / RECORD, command(model, folders)
    line = command_line(words, folders)
    if record.exists():
        result: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        if result["command"] != line:
            raise InputError(
                f"{out} was made by another command: {result['command']}. Remove the folder to make it again"
            )
        return {**result, **_journal(out)}
    begin = time.monotonic()
    _run(words, model, out, folders)
    result = {
        "command": line,
        "seconds": round(time.monotonic() - begin, 1),
        "seed": model.seed,
    }
    record.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _thin(out)
    return {**result, **_journal(out)}


def _run(words: list[str], model: Made, out: Path, folders: Folders) -> None:
    begun = (out / "training" / "metrics.jsonl").exists() or (out / "distillation").exists()
    words = [*words, "--resume"] if begun and model.verb != "postprocess" else words
    words = [*words, "--overwrite"] if model.verb == "postprocess" else words
    threads = str(folders.threads or os.cpu_count() or 1)
    words = words if model.verb == "postprocess" else [*words, "--threads", threads]
    log = Path(folders.work) / "logs" / f"{model.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    code = run_gemel(words, threads, log)
    if code:
        raise InputError(f"gemel {words[0]} for {model.name} ended with {code}; {log} says why")


def run_gemel(words: list[str], threads: str, log: Path) -> int:
    """In its own process, so that runs do not share memory."""
    with log.open("ab") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "gemel", *words],
            stdout=stream,
            stderr=stream,
            env={**os.environ, "OMP_NUM_THREADS": threads},
            check=False,
        )
    return done.returncode


def _journal(out: Path) -> dict[str, Any]:
    """What the run itself recorded: its end, and how many directions its vectors used before and after."""
    metrics = out / "training" / "metrics.jsonl"
    if not metrics.exists():
        return {}
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    end = next((line for line in reversed(lines) if line["kind"] == "end"), {})
    kept = {name: end.get(name) for name in ("steps", "best_step", "texts", "stopped")}
    ranks = {line["step"]: round(line["effective_rank"], 2) for line in lines if line["kind"] == "health"}
    if {0, end.get("best_step")} <= set(ranks):
        kept["effective_rank"] = [ranks[0], ranks[end["best_step"]]]
    return {**kept, "training_seconds": round(end.get("seconds", 0.0), 1)}


def _thin(out: Path) -> None:
    """Delete the snapshots: those of hundreds of models would fill the disk."""
    for name in ("snapshots", "best"):
        shutil.rmtree(out / "training" / name, ignore_errors=True)
