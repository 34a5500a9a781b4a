"""Folders that gemel wrote, damaged: indexes, vectors, pairs, clusters, classifiers, snapshots of a training run."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.damage import damaged_copy, files_of, seeds
from fuzz.target import Job, WrongAnswerError, target


def _folder_job(source: Path, read: Callable[[Path], object], *, skip: tuple[str, ...] = ()) -> Job:
    """`read` gets a damaged copy of `source`."""
    files = [name for name in files_of(source) if not name.startswith(skip)] if skip else files_of(source)
    copy = source.with_name(source.name + "-copy")

    def once(program: bytes) -> None:
        damaged_copy(source, files, copy, program)
        read(copy)

    return Job(seeds(files), once)


def _rows(count: int) -> tuple[list[str], object]:
    import numpy as np

    texts = [f"text number {number} with a word{number % 7}" for number in range(count)]
    return texts, np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32)


@target("index-folder", "bytes", "gemel.index.lance.store", "gemel.index.lance.location", "gemel.index.lance.recovery",
        "gemel.index.lance.columns", "gemel.index.lance.snapshot", limit_seconds=60.0)  # fmt: skip
def index_folder(folder: Path) -> Job:
    """An index without a cache: the pointer, the manifests, data and deletion files."""
    return _index(folder, 30, large=10_000)


@target("index-cache", "bytes", "gemel.index.lance.cache", "gemel.index.lance.ann", "gemel.index.lance.search",
        limit_seconds=60.0)  # fmt: skip
def index_cache(folder: Path) -> Job:
    """An index with what is built for search: lists of neighbors and the index of words."""
    return _index(folder, 400, large=100)


def _index(folder: Path, rows: int, large: int) -> Job:
    import numpy as np

    from gemel.index.lance.store import LanceStore
    from gemel.index.open import open_index

    def opened(copy: Path, **settings: object) -> object:
        return open_index(LanceStore(copy, large=large, many=large, durable=False), **settings)

    texts, vectors = _rows(rows)
    with opened(folder / "index", dim=8, fields={"year": "int", "lang": "text"}) as index:
        index.add(
            texts, vectors=vectors, ids=range(rows), fields={"year": list(range(rows)), "lang": ["en"] * rows}
        )
        index.delete([3, 5])
        index.compact() if rows > large else None
        index.upsert(
            texts[:2], vectors=vectors[:2], ids=[0, 1], fields={"year": [1, 2], "lang": ["de", None]}
        )

    def read(copy: Path) -> None:
        with opened(copy, create=False) as index:
            index.count("year > 3")
            index.get([1, 2])
            index.search(np.ones(8), 3, where="lang = 'en'")
            for hit in index.search(np.ones(8), 5).hits:
                if not np.isfinite(hit.score):
                    raise WrongAnswerError(f"a score of {hit.score}")
            index.verify(5)
            index.upsert(["new"], vectors=np.ones((1, 8)), ids=["new"])

    return _folder_job(folder / "index", read, skip=("lock",))


def _add_encoded(format: str) -> None:
    @target(
        f"encoded-{format}",
        "bytes",
        "gemel.texts.encode_folder",
        "gemel.texts.folder_files",
    )
    def make(folder: Path) -> Job:
        """Vectors on disk, read by `read_folder`, by `verify`, and by a resumed encoding."""
        import gemel
        from gemel.files.rows import Row
        from tiny import tiny_bert

        model = gemel.load(tiny_bert(folder / "model", layers=1, width=8, heads=2))
        rows = [Row(str(number), f"text {number}") for number in range(20)]
        more = [*rows, Row("20", "one more")]
        settings = {"fingerprint": {"model": "m"}, "format": format, "keep_texts": True, "shard_rows": 8}
        gemel.encode_to_folder(model, rows, folder / "vectors", **settings)
        good = gemel.read_folder(folder / "vectors").vectors[:].copy()

        def read(copy: Path) -> None:
            refused = None
            try:
                _look(copy)
            except gemel.GemelError as error:
                refused = error
            gemel.encode_to_folder(model, more, copy, **settings)
            if refused is not None:
                raise refused

        def _look(copy: Path) -> None:
            result = gemel.read_folder(copy)
            vectors, ids, texts = result.vectors, result.ids, result.texts
            if not len(vectors) == len(ids) == len(texts) == len(result):
                raise WrongAnswerError(
                    f"{len(result)} rows, {len(vectors)} vectors, {len(ids)} ids, {len(texts)} texts"
                )
            result.verify()
            if vectors.shape != good.shape or (vectors != good).any():
                raise WrongAnswerError("verify accepts vectors that are wrong")

        return _folder_job(folder / "vectors", read)


for _format in ("npy", "safetensors", "jsonl", "parquet"):
    _add_encoded(_format)


def _add_json(name: str, file: str, *covers: str) -> None:
    """The JSON file that says what is in a folder of vectors, or how far a run has come."""

    @target(name, "json", *covers)
    def make(folder: Path) -> Job:
        import gemel
        from gemel.files.rows import Row
        from tiny import tiny_bert

        model = gemel.load(tiny_bert(folder / "model", layers=1, width=8, heads=2))
        rows = [Row(str(number), f"text {number}") for number in range(20)]
        settings: dict[str, Any] = {"format": "safetensors", "keep_texts": True, "shard_rows": 8}
        settings["fingerprint"] = {"model": "m"}
        gemel.encode_to_folder(model, rows, folder / "vectors", **settings)
        copy = folder / "copy"
        seed = (folder / "vectors" / "manifest.json").read_bytes()

        def read(data: bytes) -> None:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder / "vectors", copy)
            (copy / file).write_bytes(data)
            refused = None
            try:
                result = gemel.read_folder(copy)
                len(result), result.dim, result.vectors, result.ids, result.texts, result.verify()
            except gemel.GemelError as error:
                refused = error
            gemel.encode_to_folder(model, rows, copy, **settings)
            if refused is not None and file == "manifest.json":
                raise refused

        return Job([seed if file == "manifest.json" else _journal(folder / "vectors", rows[:8])], read)


def _journal(folder: Path, rows: list[Any]) -> bytes:
    """progress.json of a run that was killed when its first shard was full."""
    from gemel.texts.encode_folder import InputHash

    result = json.loads((folder / "manifest.json").read_text())
    digest = InputHash()
    for row in rows:
        digest.add(row)
    sizes = {}
    for name in ("ids.jsonl", "texts.jsonl"):
        lines = (folder / name).read_bytes().splitlines(keepends=True)
        sizes[name] = sum(map(len, lines[: len(rows)]))
    state = {
        "kind": result["kind"],
        "version": result["version"],
        "plan": {name: result[name] for name in ("fingerprint", "format", "keep_texts", "shard_rows")},
        "rows": len(rows),
        "input_sha256": digest.hexdigest(),
        "dtype": "float32",
        "dim": 8,
        "sizes": sizes,
        "shards": result["shards"][:1],
    }
    return json.dumps(state).encode()


_add_json(
    "encoded-manifest",
    "manifest.json",
    "gemel.texts.encode_folder",
    "gemel.texts.folder_files",
)
_add_json("encoded-progress", "progress.json", "gemel.texts.folder_files", "gemel.texts.encode_folder")


@target("pair-folder", "bytes", "gemel.vectors.pairs")
def pair_folder(folder: Path) -> Job:
    """A finished folder of pairs, opened by a second request."""
    import gemel

    _, vectors = _rows(30)
    gemel.similar_pairs(vectors, min_score=0.2, out=folder / "pairs")

    def read(copy: Path) -> None:
        result = gemel.similar_pairs(vectors, min_score=0.2, out=copy)
        if not len(result.score) == len(result.left) == len(result.right):
            raise WrongAnswerError("columns of different lengths")

    return _folder_job(folder / "pairs", read)


@target("pair-progress", "json", "gemel.vectors.pairs")
def pair_progress(folder: Path) -> Job:
    """The journal of a run that was killed."""
    import gemel

    _, vectors = _rows(30)
    gemel.similar_pairs(vectors, min_score=0.2, out=folder / "done")
    plan = json.loads((folder / "done" / "pairs.json").read_text())["plan"]
    state = {"plan": plan, "next_row": 0, "pairs": 0, "kept": None}

    def read(data: bytes) -> None:
        shutil.rmtree(folder / "pairs", ignore_errors=True)
        shutil.copytree(folder / "done", folder / "pairs")
        (folder / "pairs" / "pairs.json").unlink()
        (folder / "pairs" / "progress.json").write_bytes(data)
        gemel.similar_pairs(vectors, min_score=0.2, out=folder / "pairs")

    return Job([json.dumps(state).encode(), json.dumps({**state, "next_row": 30, "pairs": 3}).encode()], read)


@target("cluster-folder", "bytes", "gemel.groups.cluster", "gemel.groups.map")
def cluster_folder(folder: Path) -> Job:
    import gemel
    from gemel.groups.map import ClusteredTexts, read_cluster_folder, write_cluster_folder

    texts, vectors = _rows(30)
    clusters = gemel.cluster(vectors, k=3, texts=texts)
    result = ClusteredTexts([str(n) for n in range(30)], texts, vectors, clusters, {"name": "m"})
    write_cluster_folder(folder / "clusters", result, title="t", map=None)
    return _folder_job(
        folder / "clusters", lambda copy: read_cluster_folder(copy).clusters.assign(vectors[:2])
    )


@target("clusters-json", "json", "gemel.groups.cluster")
def clusters_json(folder: Path) -> Job:
    import gemel

    texts, vectors = _rows(30)
    gemel.cluster(vectors, k=3, texts=texts).save(folder / "clusters")
    path = folder / "clusters" / "clusters.json"
    mark = json.loads(path.read_bytes())["mark"]

    def read(data: bytes) -> None:
        with contextlib.suppress(
            ValueError, RecursionError
        ):  # the run id, without which the rest is not read
            content = json.loads(data)
            if isinstance(content, dict) and isinstance(content.get("mark"), str):
                data = json.dumps({**content, "mark": mark}).encode()
        path.write_bytes(data)
        gemel.Clusters.load(folder / "clusters").assign(vectors[:2])

    return Job([path.read_bytes()], read)


@target("classifier-json", "json", "gemel.sklearn")
def classifier_json(folder: Path) -> Job:
    import numpy as np
    from safetensors.numpy import save_file

    from gemel.sklearn import FewShotClassifier

    about = {
        "parameters": {"seed": 0},
        "classes": ["a", "b"],
        "dtype": "<U1",
        "model": "m",
        "fingerprint": "f",
        "tuned": False,
    }
    (folder / "kept").mkdir()
    save_file({"weight": np.ones((2, 4)), "bias": np.ones(2)}, folder / "kept" / "head.safetensors")
    path = folder / "kept" / "classifier.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        FewShotClassifier._read(folder / "kept")

    return Job([json.dumps(about).encode()], read)


@target("snapshot", "bytes", "gemel.training.loop")
def snapshot(folder: Path) -> Job:
    """A snapshot of a training run, as `gemel train --resume` reads it."""
    import torch

    from gemel.training.loop import Snapshots, read_snapshot

    snapshots = Snapshots(folder / "run", keep=1)
    state = {"step": 3, "epoch": 0, "random": [1, 2]}
    kept = snapshots.write(
        3, state, {"network": {"w": torch.ones(4, 3)}, "objective": {}, "optimizer": {"m": torch.ones(2)}}
    )
    return _folder_job(kept, read_snapshot)


@target("snapshot-state", "json", "gemel.training.loop")
def snapshot_state(folder: Path) -> Job:
    import torch

    from gemel.training.loop import Snapshots, read_snapshot

    kept = Snapshots(folder / "run", keep=1).write(3, {"step": 3}, {"network": {"w": torch.ones(4, 3)}})

    def read(data: bytes) -> None:
        (kept / "state.json").write_bytes(data)
        read_snapshot(kept)

    return Job([(kept / "state.json").read_bytes()], read)


@target("token-index", "bytes", "gemel.vectors.maxsim", "gemel.vectors.token_index")
def token_index(folder: Path) -> Job:
    """A saved index of 2-bit token vectors: compiled code reads what its offsets and codes say."""
    import numpy as np

    import gemel
    from gemel.vectors.token_index import CentroidCodes, TokenIndex

    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    documents = gemel.MultiVectors(vectors, np.arange(0, 301, 5), ()).as_form("2bit")
    codes = CentroidCodes.build(documents, 1)
    TokenIndex(documents, codes, candidates=10, recall=1.0).save(folder / "tokens")

    def read(copy: Path) -> None:
        rows, scores = TokenIndex.load(copy).search(vectors[:4], 1, threads=1)
        if rows.shape != scores.shape or len(rows) > 1:
            raise WrongAnswerError(f"{rows.shape} rows, {scores.shape} scores")

    return _folder_job(folder / "tokens", read)
