"""Table 7, the headline and the students: sentences per second, the most similar pair. Needs a quiet machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from reproduction.making import make, source_of
from reproduction.parts import Folders
from reproduction.plan import PUBLISHED, students
from reproduction.scales import SCALES, Scale
from reproduction.shapes import BASE, Shape, base_shape, sentences, shapes, start_cross

ROUNDS = 3
BATCH = 32
Encode = Callable[[Sequence[str]], object]


def table7(scale: Scale, folders: Folders) -> list[dict[str, Any]]:
    """Best of three rounds; loading is outside the timer, words to tokens inside."""
    threads = folders.threads or os.cpu_count() or 1
    count = 1000 if scale.name == "small" else 10_000
    texts = sentences(folders, count)
    result = _timed("Avg. GloVe", {"glove": _glove(folders)}, texts) if folders.glove else []
    for shape in shapes(folders):
        part = texts[: max(64, int(shape.share * len(texts)))]
        result += _timed(shape.name, _systems(shape, threads), part)
    return [{**entry, "threads": threads} for entry in result]


def _timed(model: str, systems: dict[str, Encode], texts: Sequence[str]) -> list[dict[str, Any]]:
    """The systems take turns, so that a slow moment of the machine affects all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for encode in systems.values():
        encode(texts[:BATCH])
    for _ in range(ROUNDS):
        for name, encode in systems.items():
            begin = perf_counter()
            encode(texts)
            seconds[name].append(round(perf_counter() - begin, 6))
    return [
        {
            "model": model,
            "system": name,
            "sentences": len(texts),
            "seconds": taken,
            "per_second": round(len(texts) / min(taken), 1),
        }
        for name, taken in seconds.items()
    ]


def _glove(folders: Folders) -> Encode:
    from gemel.evaluation.evaluate import open_encoder

    return open_encoder(f"glove:{folders.glove}").encode


def _systems(shape: Shape, threads: int) -> dict[str, Encode]:
    """The same network three ways: padded batches as they come, sorted by length first, and gemel."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    import gemel

    torch.set_num_threads(threads)
    tokenizer, network = (
        AutoTokenizer.from_pretrained(shape.folder),
        AutoModel.from_pretrained(shape.folder).eval(),
    )

    def padded(texts: Sequence[str]) -> object:
        with torch.inference_mode():
            for begin in range(0, len(texts), BATCH):
                batch = tokenizer(list(texts[begin : begin + BATCH]), padding=True, return_tensors="pt")
                hidden, mask = network(**batch).last_hidden_state, batch["attention_mask"][..., None]
                _ = (hidden * mask).sum(1) / mask.sum(1)
        return None

    def by_length(texts: Sequence[str]) -> object:
        return padded(sorted(texts, key=len))

    model = gemel.load(shape.folder)
    return {
        "padded": padded,
        "sorted": by_length,
        "gemel": lambda texts: model.encode(texts, threads=threads),
    }


def headline(scale: Scale, folders: Folders) -> list[dict[str, Any]]:
    """Both ways for each encoder: the bi-encoder from text to pair, the cross-encoder on a sample of the pairs."""
    texts = sentences(folders, 2000 if scale.name == "small" else 10_000)
    count, threads = len(texts), folders.threads or os.cpu_count() or 1
    crosses = {BASE: base_shape(folders, cross=True), shapes(folders)[0].name: start_cross(folders)}
    result = []
    for shape in shapes(folders):
        if scale.name == "small" and shape.name == BASE:
            continue
        entry: dict[str, Any] = {"model": shape.name, "sentences": count, "threads": threads}
        entry["pairs"] = count * (count - 1) // 2
        ways = [_bi_encoder(shape, texts, threads)]
        if shape.name in crosses:
            entry["cross_sample"] = min(500 if shape.name == BASE else 1000, count // 2)
            ways.append(_cross(str(crosses[shape.name]), texts, entry["cross_sample"], threads))
        result.append(entry | _in_turns(ways))
    return result


def _in_turns(ways: Sequence[Callable[[], dict[str, Any]]]) -> dict[str, Any]:
    """Seconds of every round; other values are the same in each."""
    taken: dict[str, Any] = {}
    for way in list(ways) * ROUNDS:
        for name, value in way().items():
            if isinstance(value, float):
                taken.setdefault(name, []).append(round(value, 6))
            else:
                taken[name] = value
    return taken


def _bi_encoder(shape: Shape, texts: Sequence[str], threads: int) -> Callable[[], dict[str, Any]]:
    import gemel

    model = gemel.load(shape.folder)
    model.encode(texts[:BATCH], threads=threads)

    def find() -> dict[str, Any]:
        begin = perf_counter()
        vectors = model.encode(texts, threads=threads)
        pairs = gemel.similar_pairs(vectors, k=1, threads=threads)
        seconds = perf_counter() - begin
        return {"bi_seconds": seconds, "best": [texts[int(pairs.left[0])], texts[int(pairs.right[0])]]}

    return find


def _cross(folder: str, texts: Sequence[str], sample: int, threads: int) -> Callable[[], dict[str, Any]]:
    """Texts far apart in the list are used as random pairs. The time for all pairs is extrapolated."""
    import gemel

    model = gemel.load_cross(folder)
    left, right = list(texts[:sample]), list(texts[sample : 2 * sample])
    model.scores(left[:BATCH], right[:BATCH], threads=threads)

    def score() -> dict[str, Any]:
        begin = perf_counter()
        model.scores(left, right, threads=threads)
        return {"cross_seconds": perf_counter() - begin}

    return score


def front(scale: Scale, folders: Folders) -> list[dict[str, Any]]:
    """The teacher and its students on the same sentences, in turn.

    Speed depends on the shape of a model, not on its training, so the students of the small scale are timed.
    """
    import gemel

    threads = folders.threads or os.cpu_count() or 1
    texts = sentences(folders, 1000 if scale.name == "small" else 10_000)

    def encode_with(folder: str) -> Encode:
        model = gemel.load(folder)
        return lambda texts: model.encode(texts, threads=threads)

    models = {"teacher": PUBLISHED, **students(SCALES["small"])}
    for model in models.values():
        make(model, folders)
    systems = {label: encode_with(source_of(model, folders)) for label, model in models.items()}
    return [{**row, "model": row["system"], "threads": threads} for row in _timed("", systems, texts)]


TIMED: dict[str, Callable[[Scale, Folders], list[dict[str, Any]]]] = {
    "7": table7,
    "headline": headline,
    "front": front,
}
