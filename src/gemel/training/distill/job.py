"""A distillation: its request, its folder, its data, its result, and the steps that all methods share.

out/                     the student, once it is done
  distillation/
    request.json         the request
    pairs.jsonl          pairs with the teacher's scores
    vectors/             the teacher's vectors of the texts
    NAME/                the student before training
    result.json          the result
  training/              the training run, if there is one
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

from gemel.errors import InputError
from gemel.files.rows import Row
from gemel.model import Model, load
from gemel.options import check_choice, check_count
from gemel.terminal import Progress
from gemel.texts.encode_folder import FolderProgress, encode_to_folder, read_folder
from gemel.training.data import open_all
from gemel.training.data.columns import choose_columns, is_several, source_of
from gemel.training.distill.teacher import (
    AgreementScores,
    AgreementTest,
    BiTeacher,
    CrossTeacher,
    StudentAgreement,
    Teacher,
    agreement_on_texts,
    split_rows,
)
from gemel.training.objectives.base import Needs
from gemel.training.options import TrainOptions
from gemel.training.run import TrainResult
from gemel.types import ShownResult, Vectors

FOLDER = "distillation"


@dataclass(eq=False)
class DistillJob:
    """One distillation in progress."""

    request: DistillRequest
    options: TrainOptions
    teacher: Teacher
    say: Callable[[str], None] = lambda line: None
    """Called with each note, line by line."""
    notes: list[str] = field(default_factory=list)
    _new: bool = field(default=False, init=False)
    """The folder did not exist before."""

    @property
    def folder(self) -> Path:
        return self.request.out / FOLDER

    @property
    def encoder(self) -> BiTeacher:
        """The teacher, for methods that need its vectors."""
        if isinstance(self.teacher, CrossTeacher):
            raise InputError(
                f"{self.teacher.name} is a cross-encoder: it scores pairs and has no vectors. Use how='pairs'"
            )
        return self.teacher

    def open(self) -> None:
        """Create the folder, or check that it has the same distillation to resume."""
        out, path = self.request.out, self.folder / "request.json"
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file. Give a new folder for the student")
        now = self._identity()
        if any(file != path for file in out.rglob("*") if file.is_file()):
            if not self.request.resume or not path.is_file():
                raise InputError(
                    f"{out} exists and is not empty. Give a new folder, or resume the distillation in it: "
                    "resume=True (--resume)"
                )
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = [name for name in now if now[name] != before.get(name)]
            if changed:
                raise InputError(
                    f"{out} has another distillation: {', '.join(changed)} changed. Give the same arguments, or a "
                    "new folder"
                )
        self._new = not out.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")

    def discard(self) -> None:
        """Remove the folder of a refused request, if it is new and has nothing else in it."""
        files = [file for file in self.request.out.rglob("*") if file.is_file()]
        if self._new and files == [self.folder / "request.json"]:
            shutil.rmtree(self.request.out)

    def _identity(self) -> dict[str, Any]:
        request = self.request
        names = ("how", "objective", "neighbors", "random_pairs", "bridge", "layers", "dim", "train")
        return {
            "teacher": self.teacher.identity,
            "student": None if request.student is None else str(request.student),
            "keep": list(request.keep),
            **{name: getattr(request, name) for name in names},
        }

    def note(self, *lines: str) -> None:
        """Report these lines now, and add them to the result."""
        for line in lines:
            self.notes.append(line)
            self.say(line)

    def read_texts(self, near_by: Model | None = None) -> StudentTexts:
        """The texts to learn from, and the test on those held out; `near_by` finds its near pairs, else the teacher."""
        seed = self.options.seed
        data = read_texts(self.request.data, self.request.columns, skip_bad=self.options.skip_bad)
        self.note(*data.notes)
        split = split_rows(len(data.rows), seed)
        test = agreement_on_texts(
            self.teacher, data.rows, split, near_by=near_by or self.encoder.model, seed=seed
        )
        return StudentTexts([data.rows[row] for row in split.train], test)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """The teacher's vectors of `texts`, computed once: stored in the folder, or where the request says."""
        teacher = self.encoder
        line = Progress(len(texts), "texts encoded by the teacher", shown=self.options.progress)
        done = 0

        def advance(state: FolderProgress) -> None:
            nonlocal done
            line.add(state.rows - done)
            done = state.rows

        rows = (Row(str(number), text) for number, text in enumerate(texts))
        folder = self.request.teacher_vectors or self.folder / "vectors"
        fingerprint = teacher.model.fingerprint.to_json()
        encode_to_folder(
            teacher, rows, folder, fingerprint=fingerprint, format="safetensors", progress=advance
        )
        line.close()
        return read_folder(folder).vectors

    def finish(
        self,
        test: AgreementTest | None,
        before: AgreementScores | None,
        learnt_from: str,
        trained: TrainResult | None,
    ) -> DistillResult:
        """Measure the student in its folder and write result.json."""
        student = load(self.request.out)
        after = None if test is None else test.measure(student, threads=self.options.threads)
        if before and after and (after.agreement.all or 0) < (before.agreement.all or 0):
            self.note(
                "warning: the student agrees less with its teacher than before. Give more texts, or other settings"
            )
        cross = isinstance(self.teacher, CrossTeacher)
        speed = None if test is None else test.teacher_speed
        result = DistillResult(
            folder=self.request.out,
            how=self.request.how,
            teacher=ModelSide(
                self.teacher.name, _megabytes(self.teacher.files), speed, "pairs" if cross else "texts"
            ),
            student=ModelSide(
                student.name, _megabytes(student.checkpoint.parts), None if after is None else after.speed
            ),
            dim=student.dim,
            learnt_from=learnt_from,
            before=None if before is None else before.agreement,
            after=None if after is None else after.agreement,
            held_out=test is not None and test.held_out,
            notes=tuple(self.notes),
            trained=trained,
        )
        text = json.dumps(result.to_json(), indent=2, ensure_ascii=False)
        (self.folder / "result.json").write_text(text + "\n", encoding="utf-8")
        return result


def _megabytes(files: Sequence[Path]) -> float:
    return round(sum(path.stat().st_size for path in dict.fromkeys(files)) / 1e6, 2)


class InMemoryDataset:
    """Columns in memory with the interface of a Hugging Face data set; its repr is its name."""

    def __init__(self, name: str, columns: Mapping[str, Iterable[Any]]) -> None:
        self.info = SimpleNamespace(dataset_name=name)
        self._columns = dict(columns)

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for values in zip(*self._columns.values(), strict=True):
            yield dict(zip(self._columns, values, strict=True))

    def __repr__(self) -> str:
        return str(self.info.dataset_name)

    def __deepcopy__(self, memo: dict[int, Any]) -> InMemoryDataset:
        return self  # immutable, and as large as the corpus


_TEXTS = Needs(texts=("text",), more="translation")

_PAIRS = Needs(texts=("left", "right"))

_OTHERS = (_PAIRS, Needs(texts=("anchor", "positive"), more="negative"))


@dataclass(frozen=True, eq=False)
class DistillRows:
    """Distinct rows of texts: one text, a text and its translations, or a pair."""

    rows: list[tuple[str, ...]]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StudentTexts:
    """The rows that a student learns from, and its test on the others."""

    train: list[tuple[str, ...]]
    test: AgreementTest


def read_texts(
    data: object, columns: Mapping[str, str] | None = None, *, skip_bad: bool = False
) -> DistillRows:
    """Texts, with their translations if there are such columns; of pairs and triplets, all their texts."""
    rows: dict[tuple[str, ...], None] = {}
    notes: dict[str, None] = {}
    for part in data if is_several(data) else [data]:
        names = source_of(part).columns
        needs = next((each for each in (_TEXTS, *_OTHERS) if _fits(names, each, columns)), _TEXTS)
        for examples in open_all(part, needs, columns=columns, skip_bad=skip_bad):
            texts = [examples.texts.pick(column) for column in examples.cells.T]
            notes |= dict.fromkeys(examples.notes)
            if needs is _TEXTS:
                rows |= dict.fromkeys(zip(*texts, strict=True))
            else:
                rows |= dict.fromkeys((text,) for column in texts for text in column)
    return _checked(list(rows), tuple(notes))


def read_pairs(
    data: object, columns: Mapping[str, str] | None = None, *, skip_bad: bool = False
) -> DistillRows | None:
    """Pairs of texts, with any labels; None: the data has single texts."""
    parts = data if is_several(data) else [data]
    if not _fits(source_of(parts[0]).columns, _PAIRS, columns):
        return None
    rows: dict[tuple[str, ...], None] = {}
    notes: dict[str, None] = {}
    for examples in open_all(data, _PAIRS, columns=columns, skip_bad=skip_bad):
        rows |= dict.fromkeys(zip(*(examples.texts.pick(column) for column in examples.cells.T), strict=True))
        notes |= dict.fromkeys(examples.notes)
    return _checked(list(rows), tuple(notes))


def _fits(names: Sequence[str], needs: Needs, columns: Mapping[str, str] | None) -> bool:
    return not choose_columns(names, needs, columns).missing


def _checked(rows: list[tuple[str, ...]], notes: tuple[str, ...]) -> DistillRows:
    filled = [row for row in rows if all(text.strip() for text in row)]
    if len(filled) < 2:
        raise InputError(f"a student needs at least 2 different texts, got {len(filled)}. Give thousands")
    if len({len(row) for row in filled}) > 1:
        raise InputError("the data has rows with different numbers of translations. Give data of one kind")
    if len(filled) < len(rows):
        notes = (*notes, f"{len(rows) - len(filled):,} empty texts left out")
    return DistillRows(filled, notes)


How = Literal["pairs", "vectors", "layers", "static"]

PairObjective = Literal["regression", "cosent"]

Bridge = Literal["auto", "pca", "dense"]

_ONLY: Mapping[str, tuple[How, ...]] = {
    "student": ("pairs", "vectors"),
    "objective": ("pairs",),
    "neighbors": ("pairs",),
    "random_pairs": ("pairs",),
    "bridge": ("vectors",),
    "layers": ("layers",),
    "keep": ("layers",),
    "dim": ("static",),
    "train": ("layers", "static"),
    "teacher_vectors": ("vectors", "layers", "static"),
}
"""Methods that a setting belongs to; other settings belong to all."""


@dataclass(frozen=True, kw_only=True)
class DistillRequest:
    """Teacher, student, texts and method; TrainOptions has the rest."""

    teacher: str | Path
    out: Path
    how: How
    data: Any = None
    student: str | Path | None = None
    objective: PairObjective = "regression"
    """Of pairs: fit the teacher's scores, or only their order."""
    neighbors: int = 3
    """Of pairs, if the data has single texts: nearest texts of each that are paired with it."""
    random_pairs: int = 3
    """The same for random texts."""
    bridge: Bridge = "auto"
    """Of vectors of different sizes: reduce the teacher's (pca), or add a layer to the student (dense)."""
    layers: int | None = None
    """Of layers: how many remain, evenly spaced."""
    keep: tuple[int, ...] = ()
    """Of layers: which remain, from 0."""
    dim: int | None = None
    """Of static: dimensions. None: 256."""
    train: bool | None = None
    """Of layers and static: train the student too. None: layers yes, static no."""
    teacher_vectors: Path | None = None
    """Of vectors, layers and static: a folder for the teacher's vectors, which other students of the same texts reuse.
    None: in `out`."""
    columns: Mapping[str, str] | None = None
    """Role to column, for columns with unusual names."""
    resume: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("how", How), ("objective", PairObjective), ("bridge", Bridge)):
            check_choice(name, getattr(self, name), get_args(choices))
        for option in fields(self):
            methods = _ONLY.get(option.name)
            if methods and self.how not in methods and getattr(self, option.name) != option.default:
                raise InputError(
                    f"{option.name} belongs to how={' or '.join(methods)}, not to how={self.how}"
                )
        for name in ("neighbors", "random_pairs"):
            check_count(name, getattr(self, name))
        if self.how in ("pairs", "vectors") and self.student is None:
            raise InputError(f"how={self.how} trains a student. Name the model it starts from (--student)")
        if self.data is None and (self.trains or self.how in ("pairs", "vectors")):
            raise InputError("training a student needs texts. Give some (--data FILE)")

    @property
    def trains(self) -> bool:
        """Whether the student is trained, which needs torch."""
        return self.how != "static" if self.train is None else self.train


def likely_how(*, cross: bool, student: bool, layers: bool) -> How:
    """The method for a request that names none."""
    if layers:
        return "layers"
    if not student:
        return "static"
    return "pairs" if cross else "vectors"


@dataclass(frozen=True)
class ModelSide:
    """The teacher, or the student."""

    name: str
    megabytes: float
    """Of its weights."""
    speed: float | None
    """Texts per second on this machine, measured once; None: not measured."""
    unit: str = "texts"
    """What the speed counts: a cross-encoder scores pairs."""

    def summary(self) -> str:
        speed = "" if self.speed is None else f", {self.speed:,.0f} {self.unit}/s"
        return f"{self.name}: {self.megabytes:,.1f} MB{speed}"


@dataclass(frozen=True)
class DistillResult(ShownResult):
    """The result of a distillation: a student in a folder, and how it compares with its teacher."""

    folder: Path
    how: str
    teacher: ModelSide
    student: ModelSide
    dim: int
    learnt_from: str
    """Such as "1,200 texts"; empty: no texts were used."""
    before: StudentAgreement | None
    """Of the student before training; None without texts to measure on."""
    after: StudentAgreement | None
    held_out: bool
    """The agreement is on texts that were not trained on."""
    notes: tuple[str, ...] = ()
    trained: TrainResult | None = None

    def to_json(self) -> dict[str, Any]:
        trained = None if self.trained is None else self.trained.to_json()
        return {**asdict(self), "folder": str(self.folder), "notes": list(self.notes), "trained": trained}

    def summary(self) -> str:
        """A few lines for the terminal."""
        lines = [f"{self.folder}: {self.student.name}, {self.dim} dimensions, by {self.how}"]
        lines += [f"teacher {self.teacher.summary()}", f"student {self.student.summary()}"]
        lines += self.agreement_lines()
        return "\n".join(lines)

    def agreement_lines(self) -> list[str]:
        if self.after is None:
            return []
        where = "held-out texts" if self.held_out else "its training texts (too few to hold some out)"
        lines = [f"agreement with the teacher, Spearman x 100 on {where}:"]
        if self.before is not None:
            lines.append(f"  before: {self.before.summary()}")
        return [*lines, f"  after:  {self.after.summary()}"]
