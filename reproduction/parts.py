"""The parts of a plan: rows to train on, how a model is made, what it is measured on, and a table of such rows."""

from __future__ import annotations

from dataclasses import dataclass

START = "tinybert-4L-312"
TEACHER = "all-MiniLM-L6-v2"
NLI = ("nli/snli-train-subset", "nli/mnli-train-subset", "nli/lingnli-train")


@dataclass(frozen=True)
class Rows:
    """Files of the data folder as they are; or a file made of them: some rows, a fold, other columns."""

    files: tuple[str, ...]
    count: int | None = None
    """Number of rows, drawn at random by `seed`. None: all."""
    seed: int = 0
    shape: str = ""
    """"": columns as they are. graded: NLI labels as scores. arguments: grades as scores. texts: a column of texts."""
    fold: tuple[str, int, int] | None = None
    """(pairs or topics, number of the fold, folds): what is outside the fold; inside it if `held_out`."""
    held_out: bool = False
    each: int | None = None
    """Of shape texts: the most texts of each file, drawn at random, so that no file dominates. None: all."""
    without: Rows | None = None
    """Rows with a text of these are left out; texts are compared by their letters and digits."""

    @property
    def made(self) -> bool:
        """A new file is written for it."""
        return bool(self.count or self.shape or self.fold or self.without)

    @property
    def name(self) -> str:
        """Of the file that is made."""
        stem = "nli" if self.files == NLI else "+".join(file.split("/")[-1] for file in self.files)
        drawn = f"{self.count}-s{self.seed}" if self.count else f"each-{self.each}" if self.each else ""
        parts = [stem[:60], self.shape, drawn]
        if self.fold:
            by, number, of = self.fold
            parts.append(f"{by}{number}of{of}-{'held' if self.held_out else 'rest'}")
        if self.without:
            parts.append("unseen")
        return "-".join(part for part in parts if part)


DEVELOPMENT = Rows(("sts/stsb-train",), fold=("pairs", 0, 5), held_out=True)
"""A fifth of the training pairs of STSb, on which everything is chosen: no table reports on it."""


@dataclass(frozen=True)
class Made:
    """A model by name: what is there already, or the gemel command that makes it."""

    name: str
    source: str = ""
    """An existing model: `start`, `glove`, or a name that gemel.evaluate accepts."""
    verb: str = ""
    """train, postprocess or distill."""
    start: Made | None = None
    rows: Rows | None = None
    flags: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Suite:
    """What a model is measured on: a task of gemel.evaluate and its files."""

    name: str
    task: str
    files: tuple[Rows, ...] = ()
    """None: a folder, from which the task takes the files that fit."""
    folder: str = ""
    """Inside the data folder."""
    settings: tuple[tuple[str, str | int], ...] = ()


@dataclass(frozen=True)
class Row:
    """One measurement: a model in a line of a table, by a seed or a fold."""

    label: str
    model: Made
    suite: Suite
    seed: int = 0
    pooling: str = ""
    """Instead of the model's own."""
    after: str = ""
    """A method of gemel postprocess on the vectors, fitted on NLI texts."""
    documents: Made | None = None
    """Encodes the documents of a search; `model` then encodes the queries only."""


@dataclass(frozen=True)
class Folders:
    """Where things are on this machine."""

    data: str
    weights: str
    work: str
    glove: str = ""
    threads: int = 0
    """Of a run. 0: all cores."""
    jobs: int = 1
    """Runs at a time."""
