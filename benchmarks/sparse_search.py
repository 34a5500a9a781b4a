"""Search in sparse vectors: our inverted file, products of scipy, and bm25s, on the same passages, in turns.

    python benchmarks/sparse_search.py --model FOLDER    100,000 passages of 20 newsgroups, 500 subjects as queries
    python benchmarks/sparse_search.py --quick           does everything work? 300 passages, no results file

Timed: from the query's weights (for bm25s: its words) to the rows of the ten best passages, one query per call, on one
thread. Encoding is not timed there; the rate of the encoder is measured on 512 passages, ours and that of
sentence-transformers. The vectors of the passages are kept in the work folder for the next run.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import gemel
from comparison_flags import WORK, comparison, environments_of, result_file
from environments import Environments
from machine import describe
from texts import read_tsv
from workers import Worker, attempt, say, surroundings

SEED, K = 7, 10
WORDS, STRIDE, LEAST = 60, 36, 20  # of a passage; to the next one; of the last one of a text
ENCODED, BATCHES = 512, (32, 64)
PART = 5000  # passages encoded at once: a run that is stopped continues there
SYSTEMS: dict[str, tuple[str, str | None, dict[str, Any]]] = {  # title: kind, environment, options
    "gemel, exact": ("ours", None, {"exact": True}),
    "gemel, approximate": ("ours", None, {"exact": False}),
    "scipy, product with the transposed matrix": ("scipy", "sparse", {"dense": False}),
    "scipy, product with a dense query": ("scipy", "sparse", {"dense": True}),
    "bm25s, our weights, queries unweighted": ("bm25s", "sparse", {"weights": "model"}),
    "bm25s, BM25": ("bm25s", "sparse", {"weights": "bm25"}),
}
OURS = "gemel, exact"


def parser() -> argparse.ArgumentParser:
    made = comparison(__doc__, "sparse-search.json", data="clustering/", rounds=5)
    add = made.add_argument
    add("--model", default="models/splade", help="the folder of a sparse encoder; default models/splade")
    add("--precision", default="float32", help="of encoding the passages: float32, bfloat16 or int8")
    add("--passages", type=int, default=100_000)
    add("--queries", type=int, default=500)
    made.set_defaults(threads=1)
    return made


def passages_of(text: str) -> Iterator[str]:
    words = text.split()
    for start in range(0, max(1, len(words) - LEAST), STRIDE):
        passage = words[start : start + WORDS]
        if len(passage) >= LEAST:
            yield " ".join(passage)


def read(data: Path, passages: int, queries: int) -> tuple[list[str], list[str]]:
    """Distinct passages in the order of the texts, and subjects without `Re:`."""
    rows = read_tsv(data / "clustering" / "20newsgroups.tsv.gz")
    every = list(dict.fromkeys(passage for row in rows for passage in passages_of(row["text"])))
    plain = {re.sub(r"^(re|fwd?)(\[\d+\])?: *", "", row["subject"], flags=re.IGNORECASE) for row in rows}
    subjects = sorted(subject for subject in plain if len(subject.split()) > 1)
    return every[:passages], random.Random(SEED).sample(subjects, queries)


def encoded(model: gemel.SparseModel, passages: list[str], queries: list[str], folder: Path) -> Path:
    """The file with the weights of both; made once per model and number of texts, in parts that are kept."""
    whole = folder / f"{model.weights_hash[:12]}-{model.precision}-{len(passages)}-{len(queries)}.npz"
    if whole.exists():
        return whole
    say(f"encoding {len(passages):,} passages, once")
    parts = []
    for start in range(0, len(passages), PART):
        part = folder / f"{whole.stem}-{start}.npz"
        if not part.exists():
            found = model.encode_document(passages[start : start + PART], on_long="truncate")
            write(part, indptr=found.indptr, indices=found.indices, values=found.values)
            say(f"  {min(start + PART, len(passages)):,}")
        parts.append(part)
    documents = [np.load(part) for part in parts]
    lengths = np.concatenate([np.diff(part["indptr"]) for part in documents])
    asked = model.encode_query(queries, on_long="truncate")
    write(
        whole,
        dim=np.array(model.dim),
        document_indptr=np.concatenate([[0], np.cumsum(lengths)]),
        document_indices=np.concatenate([part["indices"] for part in documents]),
        document_values=np.concatenate([part["values"] for part in documents]),
        query_indptr=asked.indptr,
        query_indices=asked.indices,
        query_values=asked.values,
    )
    for part in parts:
        part.unlink()
    return whole


def write(path: Path, **arrays: np.ndarray) -> None:
    fresh = path.with_name("fresh.npz")
    np.savez(fresh, **arrays)  # type: ignore[arg-type]
    fresh.rename(path)


class Process:
    """A system in its own process, and its line of the report; a failure is noted there."""

    def __init__(
        self, title: str, environment: str | None, options: argparse.Namespace, folder: Path
    ) -> None:
        self.title, self.entry = title, dict[str, Any](title=title)
        self._environment, self._options, self._folder = environment, options, folder
        self._worker: Worker | None = None

    def start(self, verb: str, fields: dict[str, Any], environments: Environments) -> None:
        def do() -> None:
            ours = self._environment is None
            python = Path(sys.executable) if ours else environments.python(str(self._environment))
            variables = surroundings(self._options.threads, ours=ours)
            log = self._folder / f"{re.sub('[^a-z0-9]+', '-', self.title.lower())}.log"
            self._worker = Worker(self.title, python, "sparse_peer.py", variables, log)
            self.entry.update(self._worker.ask(verb, **fields, timeout_s=1800))

        attempt(self.entry, do)

    def ask(self, verb: str, take: Callable[[dict[str, Any]], None], **fields: Any) -> None:
        """`take` gets the answer."""

        def do() -> None:
            assert self._worker is not None
            take(self._worker.ask(verb, **fields, timeout_s=3600))

        if "failed" not in self.entry:
            attempt(self.entry, do)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


class Searcher(Process):
    def run(self) -> None:
        self.ask("run", self._take, k=K)

    def _take(self, answer: dict[str, Any]) -> None:
        p50, p95 = np.percentile(answer["milliseconds"], [50, 95])
        self.entry.setdefault("rounds", []).append({"p50_ms": float(p50), "p95_ms": float(p95)})
        self.entry.update(memory_mb=answer["memory_mb"], rows=answer["rows"])


def search(
    rows: Path,
    passages: list[str],
    queries: list[str],
    options: argparse.Namespace,
    environments: Environments,
) -> dict[str, Any]:
    """Every system in turns."""
    folder, texts = rows.parent, rows.parent / "passages.json"
    texts.write_text(json.dumps(passages), encoding="utf-8")
    words = [re.findall(r"(?u)\b\w\w+\b", query.lower()) for query in queries]  # as bm25s tokenizes
    searchers = []
    try:
        for number, (title, (kind, environment, own)) in enumerate(SYSTEMS.items()):
            shutil.rmtree(folder / f"index-{number}", ignore_errors=True)
            searchers.append(Searcher(title, environment, options, folder))
            fields = {"rows": str(rows), "folder": str(folder / f"index-{number}"), "words": words, "k": K}
            fields |= {"system": kind, "options": own | {"texts": str(texts)}}
            searchers[-1].start("load", fields, environments)
        for _ in range(options.rounds):
            for searcher in searchers:
                searcher.run()
    finally:
        for searcher in searchers:
            searcher.close()
    return finished({searcher.title: searcher.entry for searcher in searchers})


def finished(results: dict[str, Any]) -> dict[str, Any]:
    """The best round of each, and the share of the exact answer that it found."""
    exact = results[OURS].get("rows")
    for title, entry in results.items():
        rows = entry.pop("rows", None)
        if "rounds" not in entry:
            continue
        entry.update(min(entry["rounds"], key=lambda one: one["p50_ms"]))
        comparable = "bm25s" not in title
        if exact and rows and comparable:
            shares = [
                len({*a} & {*b}) / max(1, len(a)) if a else 1.0 for a, b in zip(exact, rows, strict=True)
            ]
            entry["recall_at_10"] = round(float(np.mean(shares)), 4)
    return results


class SparseEncoder(Process):
    def run(self, texts: Path) -> None:
        for batch in BATCHES if self._environment else BATCHES[:1]:  # gemel has no batch size
            self.ask("encode", self._take, texts=str(texts), batch=batch)

    def _take(self, answer: dict[str, Any]) -> None:
        self.entry.setdefault("seconds", []).append(answer["seconds"])
        self.entry["sums"] = answer["sums"]


def encoding(
    passages: list[str], options: argparse.Namespace, environments: Environments, folder: Path
) -> dict[str, Any]:
    """Documents per second of both encoders; the peer with its best batch size."""
    texts = folder / "encoded.json"
    chosen = random.Random(SEED).sample(passages, min(ENCODED, len(passages)))
    texts.write_text(json.dumps(chosen), encoding="utf-8")
    encoders = [
        SparseEncoder("gemel", None, options, folder),
        SparseEncoder("sentence-transformers", "st", options, folder),
    ]
    try:
        for encoder in encoders:
            fields = {"model": str(Path(options.model).resolve()), "threads": options.threads}
            encoder.start("load_encoder", fields | {"system": encoder.title}, environments)
        for _ in range(min(options.rounds, 3)):
            for encoder in encoders:
                encoder.run(texts)
    finally:
        for encoder in encoders:
            encoder.close()
    for encoder in encoders:
        if "seconds" in encoder.entry:
            rate = len(chosen) / min(encoder.entry["seconds"])
            encoder.entry["documents_per_second"] = round(rate, 1)
    results = {encoder.title: encoder.entry for encoder in encoders}
    sums = [encoder.entry.pop("sums", None) for encoder in encoders]
    if all(sums):
        results["agreement"] = {"largest_difference_of_sums": float(np.abs(np.subtract(*sums)).max())}
    return results


def goals(search: dict[str, Any], encode: dict[str, Any], csr_mb: float) -> dict[str, Any]:
    """Each goal with what was measured, and whether it was met; a peer that failed is left out."""

    def ratio(start: str) -> float | None:
        times = [
            each["p50_ms"] for title, each in search.items() if title.startswith(start) and "p50_ms" in each
        ]
        return round(min(times) / search[OURS]["p50_ms"], 2) if times else None

    rates = [encode[name].get("documents_per_second") for name in ("gemel", "sentence-transformers")]
    measured = {
        "p50 of exact search at most 5 ms": (search[OURS]["p50_ms"], lambda x: x <= 5),
        "times faster than scipy at least 2": (ratio("scipy"), lambda x: x >= 2),
        "times faster than bm25s at least 2": (ratio("bm25s, our"), lambda x: x >= 2),
        "recall@10 of approximate search at least 0.95": (
            search["gemel, approximate"].get("recall_at_10"),
            lambda x: x >= 0.95,
        ),
        "bytes on disk at most 1.1 of the rows": (
            round(search[OURS]["disk_mb"] / csr_mb, 3),
            lambda x: x <= 1.1,
        ),
        "times faster than sentence-transformers in encoding at least 1": (
            round(rates[0] / rates[1], 2) if all(rates) else None,
            lambda x: x >= 1,
        ),
    }
    return {
        name: {"measured": value, "met": bool(met(value))}
        for name, (value, met) in measured.items()
        if value is not None
    }


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.quick:
        options.passages, options.queries, options.rounds = 300, 20, 1
    if not Path(options.model).is_dir():
        raise SystemExit(f"no folder {options.model}: name that of a sparse encoder with --model")
    machine = describe()
    folder = WORK / "work" / "sparse"
    folder.mkdir(parents=True, exist_ok=True)
    environments = environments_of(options)
    passages, queries = read(options.data, options.passages, options.queries)
    model = gemel.load_sparse(options.model, precision=options.precision)
    rows = encoded(model, passages, queries, folder)
    stored = np.load(rows)
    documents, csr_mb = len(stored["document_values"]), 8 * len(stored["document_values"]) / 1e6
    found = search(rows, passages, queries, options, environments)
    encode = encoding(passages, options, environments, folder)
    if "failed" in found[OURS]:
        raise SystemExit(f"sparse_search: {found[OURS]['failed']}")
    whole = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "threads": options.threads,
        "model": model.name,
        "weights_hash": model.weights_hash,
        "passages": len(passages),
        "queries": len(queries),
        "weights_per_passage": round(documents / len(passages), 1),
        "weights_per_query": round(len(stored["query_values"]) / len(queries), 1),
        "rows_mb": round(csr_mb, 1),
        "search": found,
        "encode": encode,
        "goals": goals(found, encode, csr_mb),
    }
    if out := result_file(options):
        out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    show(whole)


def show(whole: dict[str, Any]) -> None:
    base = whole["search"][OURS]["p50_ms"]
    for title, each in whole["search"].items():
        if "p50_ms" not in each:
            print(f"{title:44} {each.get('failed', 'not measured')}")
            continue
        times = f"p50 {each['p50_ms']:8.3f} ms  p95 {each['p95_ms']:8.3f} ms  {each['p50_ms'] / base:6.2f}"
        sizes = f"built in {each['build_seconds']:6.1f} s  {each['disk_mb']:7.1f} MB"
        print(f"{title:44} {times}  {sizes}  recall {each.get('recall_at_10', '-')}")
    for title in ("gemel", "sentence-transformers"):
        each = whole["encode"][title]
        print(f"{title:44} {each.get('documents_per_second', each.get('failed'))} documents per second")
    for name, goal in whole["goals"].items():
        print(f"{'met' if goal['met'] else 'NOT MET':8} {name}: {goal['measured']}")


if __name__ == "__main__":
    main()
