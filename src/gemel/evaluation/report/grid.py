"""Results arranged for reading: a grid a task, data sets by models, and the same again for parts of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gemel.evaluation.run import AVERAGE
from gemel.evaluation.scores import Score, Scores


@dataclass(frozen=True)
class Grid:
    """Results of one task; `cells[dataset, model]` is there where the model was run on the data set."""

    name: str
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    cells: Mapping[tuple[str, str], Scores]

    @property
    def mains(self) -> tuple[str, ...]:
        """Names of the numbers that models are compared by, mostly one."""
        return _ordered(result.main for result in self.cells.values())

    def score(self, dataset: str, model: str) -> Score | None:
        """The main number, None where there is no result."""
        result = self.cells.get((dataset, model))
        return result.values[result.main] if result else None

    def average(self, model: str) -> float | None:
        """The mean over all data sets; None where one is missing or undefined, or where they are of unlike kinds."""
        scores = [self.score(dataset, model) for dataset in self.datasets]
        values = [score.value for score in scores if score is not None and score.value is not None]
        if len(self.mains) != 1 or len(values) < len(self.datasets):
            return None
        return sum(values) / len(values)

    def of_dataset(self, dataset: str) -> list[Scores]:
        """The results of a data set in the order of the models."""
        return [self.cells[dataset, model] for model in self.models if (dataset, model) in self.cells]

    def wholes(self) -> list[Grid]:
        """A grid of parts for each data set that has some, and for each part that has parts itself."""
        found = []
        for dataset in self.datasets:
            results = self.of_dataset(dataset)
            parts = [replace(part, model=result.model) for result in results for part in result.parts]
            if parts:
                inner = _grid(dataset, parts)
                found += [inner, *(replace(g, name=f"{dataset} / {g.name}") for g in inner.wholes())]
        return found


def grids(results: Sequence[Scores]) -> list[Grid]:
    """One grid a task, all in the order in which they were given."""
    return [
        _grid(task, [result for result in results if result.task == task])
        for task in _ordered(result.task for result in results)
    ]


def model_names(results: Sequence[Scores]) -> tuple[str, ...]:
    """All models in the order of the results; one that came without a name is called "model"."""
    return _ordered(result.model or "model" for result in results)


def _grid(name: str, results: Sequence[Scores]) -> Grid:
    cells: dict[tuple[str, str], Scores] = {}
    for result in results:
        model, count = result.model or "model", 1
        # Two results of the same name are both shown: losing one would be worse than an odd name.
        while (result.dataset, model) in cells:
            count += 1
            model = f"{result.model or 'model'} ({count})"
        cells[result.dataset, model] = replace(result, model=model)
    # A stable sort: the average goes last, the others stay as they are.
    datasets = sorted(_ordered(dataset for dataset, _ in cells), key=lambda dataset: dataset == AVERAGE)
    return Grid(name, _ordered(model for _, model in cells), tuple(datasets), cells)


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
