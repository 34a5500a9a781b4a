"""Scores of a model on a suite: numbers with intervals for the results, items for comparing two models."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemel.evaluation.statistics import (
    CorrelationSample,
    MeanSample,
    PairedComparison,
    Sample,
    WeightedSample,
    compare,
)
from gemel.evaluation.task import Scores
from reproduction.adjusted import TwoModels, adjusted
from reproduction.derived import files_of
from reproduction.locks import alone
from reproduction.making import commands, make, source_of
from reproduction.parts import NLI, Folders, Row, Rows, Suite

AVERAGE = "average"


def measure(row: Row, folders: Folders, rounds: int) -> dict[str, Any]:
    """What the results keep of a row; measured once, then read from the work folder."""
    made = make(row.model, folders)
    path = _path(row, folders)
    with alone(folders, f"{path.parent.name}-{path.stem}"):
        measured = _measured(row, folders, rounds, path)
    names = {"label": row.label, "model": row.model.name, "suite": row.suite.name}
    more: dict[str, Any] = {"pooling": row.pooling} if row.pooling else {}
    if row.model.start and row.model.start.verb:
        more["before"] = commands(row.model.start, folders)
    # The row's seed, which may be the number of a fold; that of the training is in the command.
    return {**names, **more, **made, **measured, "seed": row.seed}


def ready(row: Row, folders: Folders) -> bool:
    """Whether it was measured before and only has to be read."""
    return _path(row, folders).exists()


def _measured(row: Row, folders: Folders, rounds: int, path: Path) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if actual.get("rounds", 0) >= rounds:
        return actual
    begin = time.monotonic()
    results = _results(row, folders, rounds)
    seconds = round(time.monotonic() - begin, 1)
    actual = {"scores": _scores(results), "rounds": rounds, "measure_seconds": seconds}
    path.parent.mkdir(parents=True, exist_ok=True)
    _save_items(path.with_suffix(".npz"), results)
    path.write_text(json.dumps(actual, indent=1) + "\n", encoding="utf-8")
    return actual


def _path(row: Row, folders: Folders) -> Path:
    indexed = f"documents-{row.documents.name}" if row.documents else ""
    pooled = "".join(f"-{part}" for part in (row.pooling, row.after, indexed) if part)
    return Path(folders.work) / "measured" / f"{row.model.name}{pooled}" / f"{suite_name(row.suite)}.json"


def suite_name(suite: Suite) -> str:
    settings = "-".join(str(value) for _, value in suite.settings)
    fold = suite.files[0].fold if suite.files else None
    return "-".join(part for part in (suite.name, settings, f"{fold[1]}of{fold[2]}" if fold else "") if part)


def _results(row: Row, folders: Folders, rounds: int) -> list[Scores]:
    import gemel
    from gemel.options import EncodeOptions

    options = EncodeOptions(threads=folders.threads or None)
    paths = [path for rows in row.suite.files for path in files_of(rows, folders)]
    paths = paths or [Path(folders.data) / row.suite.folder]
    given = {"rounds": rounds, **dict(row.suite.settings)}
    source: Any = source_of(row.model, folders)
    if row.after:
        fit_on = (
            files_of(Rows(NLI, 5000, shape="texts"), folders)[0].read_text(encoding="utf-8").splitlines()[1:]
        )
        source = adjusted(source, row.after, row.pooling or None, fit_on, folders.threads or None)
    elif row.documents:
        source = TwoModels.open(source, source_of(row.documents, folders), folders.threads or None)
    else:
        given |= {} if row.model.source in ("glove", "tfidf") else {"options": options}
        given |= {"pooling": row.pooling} if row.pooling else {}
    actual = [
        result for path in paths for result in gemel.evaluate(source, task=row.suite.task, data=path, **given)
    ]
    return [part for result in actual for part in (result.parts if result.task == "arguments" else [result])]


def _scores(results: Sequence[Scores]) -> dict[str, Any]:
    """Each data set's main number; for correlations Pearson's too, for years the other ways to count them."""
    kept = ("pearson", "spearman-mean", "spearman-wmean", "f1-macro")
    actual: dict[str, Any] = {}
    for result in results:
        main = result.values[result.main]
        more = {name: round(result.values[name].value or 0.0, 2) for name in kept if name in result.values}
        actual[result.dataset.removesuffix("-test")] = {**_ends(main.value, main.low, main.high), **more}
        actual[result.dataset.removesuffix("-test")]["items"] = result.items
    whole = [result.values[result.main].value for result in results if result.dataset != AVERAGE]
    same_kind = all(result.task != "arguments" for result in results)  # three scores of one set have no mean
    if len(whole) > 1 and AVERAGE not in actual and same_kind:
        from gemel.evaluation.evaluate import average

        mean = average([result for result in results if result.dataset != AVERAGE])
        main = mean.values[mean.main]
        actual[AVERAGE] = {**_ends(main.value, main.low, main.high), "items": mean.items}
    return actual


def _ends(value: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    numbers = {"value": value, "low": low, "high": high}
    return {name: None if number is None else round(number, 2) for name, number in numbers.items()}


def _save_items(path: Path, results: Sequence[Scores]) -> None:
    arrays = {}
    for result in results:
        name, sample = result.dataset.removesuffix("-test").replace("/", "|"), result.sample
        if isinstance(sample, CorrelationSample):
            arrays |= {f"{name}:gold": sample.gold, f"{name}:predicted": sample.predicted}
        elif isinstance(sample, MeanSample):
            arrays[f"{name}:values"] = sample.values
    np.savez_compressed(path, **arrays)


def sample_of(row: Row, folders: Folders, dataset: str) -> Sample:
    """The items of a measured row on a data set, or on all of them: the average."""
    with np.load(_path(row, folders).with_suffix(".npz")) as arrays:
        names = list(dict.fromkeys(key.rpartition(":")[0] for key in arrays))
        parts = [_sample(arrays, name) for name in names if dataset in (AVERAGE, name.replace("|", "/"))]
    return parts[0] if len(parts) == 1 else WeightedSample(tuple(parts), (1.0,) * len(parts))


def _sample(arrays: Any, name: str) -> Sample:  # noqa: ANN401 - numpy does not name the type of an open archive
    if f"{name}:values" in arrays:
        return MeanSample(arrays[f"{name}:values"])
    return CorrelationSample(arrays[f"{name}:gold"], arrays[f"{name}:predicted"])


def difference(first: Row, second: Row, dataset: str, folders: Folders, rounds: int) -> PairedComparison:
    """Second minus first, as a share, by the same items drawn for both."""
    return compare(sample_of(first, folders, dataset), sample_of(second, folders, dataset), rounds=rounds)
