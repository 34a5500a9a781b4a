"""One distillation under way: its folder, its teacher, and the steps that several ways share.

out/                     the student, once it is done
  distillation/
    request.json         what was asked for
    pairs.jsonl          pairs with the teacher's scores
    vectors/             the teacher's vectors of the texts
    NAME/                the student before training
    result.json          what came of it
  training/              the run, if there is one

What the teacher said, as a data set that training reads: columns in memory under a name.

What the student learns on: texts, texts with translations, or pairs, out of anything that training reads.

What is asked of a distillation; what does not belong together is refused before any work.

What a distillation gave: the student's folder, and how it compares with its teacher.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args

from gemel.errors import InputError
from gemel.files.rows import Row
from gemel.model import Model, load
from gemel.terminal import Progress
from gemel.texts.encode_folder import FolderProgress, encode_to_folder, read_folder
from gemel.training.data import open_all
from gemel.training.data.columns import choose_columns
from gemel.training.data.sources import is_several, source_of
from gemel.training.distill.agreement import AgreementScores, AgreementTest, StudentAgreement
from gemel.training.distill.teacher import BiTeacher, CrossTeacher
from gemel.training.objectives.base import Needs
from gemel.training.options import TrainOptions
from gemel.training.run import TrainResult
from gemel.types import Vectors

if TYPE_CHECKING:
    from gemel.training.run import TrainResult

FOLDER = "distillation"


@dataclass(eq=False)
class DistillJob:
    """What the ways of distillation work with."""

    request: DistillRequest
    options: TrainOptions
    teacher: BiTeacher | CrossTeacher
    say: Callable[[str], None] = lambda line: None
    """Told what is decided and found, line by line."""
    notes: list[str] = field(default_factory=list)
    _new: bool = field(default=False, init=False)
    """The folder was not there before."""

    @property
    def folder(self) -> Path:
        return self.request.out / FOLDER

    @property
    def encoder(self) -> BiTeacher:
        """The teacher, where only one with vectors will do."""
        if isinstance(self.teacher, CrossTeacher):
            raise InputError(
                f"{self.teacher.name} is a cross-encoder: it scores pairs and has no vectors. Use how='pairs'"
            )
        return self.teacher

    def open(self) -> None:
        """The folder is new, or holds the same distillation that is to be gone on with."""
        out, path = self.request.out, self.folder / "request.json"
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file. Give a new folder for the student")
        now = self._identity()
        if any(file != path for file in out.rglob("*") if file.is_file()):
            if not self.request.resume or not path.is_file():
                raise InputError(
                    f"{out} exists and is not empty. Give a new folder, or go on with the distillation in it: "
                    "resume=True (--resume)"
                )
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = [name for name in now if now[name] != before.get(name)]
            if changed:
                raise InputError(
                    f"{out} holds another distillation: {', '.join(changed)} changed. Ask for the same, or give a "
                    "new folder"
                )
        self._new = not out.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")

    def forget(self) -> None:
        """A request that was refused leaves no folder behind, unless it was there or something is in it by now."""
        kept = [file for file in self.request.out.rglob("*") if file.is_file()]
        if self._new and kept == [self.folder / "request.json"]:
            shutil.rmtree(self.request.out)

    def _identity(self) -> dict[str, Any]:
        asked = self.request
        names = ("how", "objective", "neighbours", "random_pairs", "bridge", "layers", "dim", "train")
        return {
            "teacher": self.teacher.identity,
            "student": None if asked.student is None else str(asked.student),
            "keep": list(asked.keep),
            **{name: getattr(asked, name) for name in names},
        }

    def note(self, *lines: str) -> None:
        """Said now, and kept for the result."""
        for line in lines:
            self.notes.append(line)
            self.say(line)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """The teacher's vectors of `texts`, kept in the folder: what is there is not computed again."""
        teacher = self.encoder
        line = Progress(len(texts), "texts read by the teacher", shown=self.options.progress)
        done = 0

        def tell(state: FolderProgress) -> None:
            nonlocal done
            line.add(state.rows - done)
            done = state.rows

        rows = (Row(str(number), text) for number, text in enumerate(texts))
        where = self.folder / "vectors"
        asked = teacher.model.fingerprint.to_json()
        encode_to_folder(teacher, rows, where, fingerprint=asked, format="safetensors", progress=tell)
        line.close()
        return read_folder(where).vectors

    def finish(
        self,
        yardstick: AgreementTest | None,
        before: AgreementScores | None,
        learnt_from: str,
        trained: TrainResult | None,
    ) -> DistillResult:
        """Measure the student in its folder and write down what came of it."""
        from gemel.training.distill.distill import describe

        student = load(self.request.out)
        after = None if yardstick is None else yardstick.measure(student, threads=self.options.threads)
        if before and after and (after.agreement.all or 0) < (before.agreement.all or 0):
            self.note(
                "warning: the student agrees less with its teacher than before. Give more texts, or other settings"
            )
        cross = isinstance(self.teacher, CrossTeacher)
        speed = None if yardstick is None else yardstick.teacher_speed
        found = DistillResult(
            folder=self.request.out,
            how=self.request.how,
            teacher=ModelSide(
                self.teacher.name, _megabytes(self.teacher.files), speed, "pairs" if cross else "texts"
            ),
            student=_student(student, after),
            dim=student.dim,
            learnt_from=learnt_from,
            before=None if before is None else before.agreement,
            after=None if after is None else after.agreement,
            held_out=yardstick is not None and yardstick.held_out,
            notes=tuple(self.notes),
            trained=trained,
        )
        text = json.dumps(found.to_json(), indent=2, ensure_ascii=False)
        (self.folder / "result.json").write_text(text + "\n", encoding="utf-8")
        describe(found)
        return found


def _student(student: Model, after: AgreementScores | None) -> ModelSide:
    size = _megabytes(student.checkpoint.parts)
    return ModelSide(student.name, size, None if after is None else after.speed)


def _megabytes(files: Sequence[Path]) -> float:
    return round(sum(path.stat().st_size for path in dict.fromkeys(files)) / 1e6, 2)


class InMemoryDataset:
    """Has what training asks of a data set. In lists of settings it is its name, not its texts."""

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
        return self  # never changed, and as large as the corpus


_TEXTS = Needs(texts=("text",), more="translation")

_PAIRS = Needs(texts=("left", "right"))

_OTHERS = (_PAIRS, Needs(texts=("anchor", "positive"), more="negative"))


@dataclass(frozen=True, eq=False)
class DistillRows:
    """Distinct rows of texts: one text, a text and its translations, or a pair."""

    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def texts(self) -> list[str]:
        """The first text of each row: what the teacher reads."""
        return [row[0] for row in self.rows]


def read_texts(
    data: object, columns: Mapping[str, str] | None = None, *, skip_bad: bool = False
) -> DistillRows:
    """Texts, with their translations where there are columns of them; of pairs and triplets, all their texts."""
    parts = data if is_several(data) else [data]
    rows: dict[tuple[str, ...], None] = {}
    notes: dict[str, None] = {}
    for part in parts:
        names = source_of(part).columns()
        needs = next((each for each in (_TEXTS, *_OTHERS) if _fits(names, each, columns)), _TEXTS)
        for found in open_all(part, needs, columns=columns, skip_bad=skip_bad):
            texts = [found.texts.pick(column) for column in found.cells.T]
            notes |= dict.fromkeys(found.notes)
            if needs is _TEXTS:
                rows |= dict.fromkeys(zip(*texts, strict=True))
            else:
                rows |= dict.fromkeys((text,) for column in texts for text in column)
    return _checked(list(rows), tuple(notes))


def read_pairs(
    data: object, columns: Mapping[str, str] | None = None, *, skip_bad: bool = False
) -> DistillRows | None:
    """Pairs of texts, whatever their labels; None: the data has single texts."""
    parts = data if is_several(data) else [data]
    if not _fits(source_of(parts[0]).columns(), _PAIRS, columns):
        return None
    rows: dict[tuple[str, ...], None] = {}
    notes: dict[str, None] = {}
    for found in open_all(data, _PAIRS, columns=columns, skip_bad=skip_bad):
        rows |= dict.fromkeys(zip(*(found.texts.pick(column) for column in found.cells.T), strict=True))
        notes |= dict.fromkeys(found.notes)
    return _checked(list(rows), tuple(notes))


def _fits(names: Sequence[str], needs: Needs, columns: Mapping[str, str] | None) -> bool:
    return not choose_columns(names, needs, columns).missing


def _checked(rows: list[tuple[str, ...]], notes: tuple[str, ...]) -> DistillRows:
    filled = [row for row in rows if all(text.strip() for text in row)]
    if len(filled) < 2:
        raise InputError(f"a student needs at least 2 different texts, got {len(filled)}. Give thousands")
    if len({len(row) for row in filled}) > 1:
        raise InputError(
            "some of the data has translations and some has none, or more of them. Give data of one kind"
        )
    if len(filled) < len(rows):
        notes = (*notes, f"{len(rows) - len(filled):,} empty texts left out")
    return DistillRows(filled, notes)


How = Literal["pairs", "vectors", "layers", "static"]

PairObjective = Literal["regression", "cosent"]

Bridge = Literal["auto", "pca", "dense"]

_ONLY: Mapping[str, tuple[How, ...]] = {
    "student": ("pairs", "vectors"),
    "objective": ("pairs",),
    "neighbours": ("pairs",),
    "random_pairs": ("pairs",),
    "bridge": ("vectors",),
    "layers": ("layers",),
    "keep": ("layers",),
    "dim": ("static",),
    "train": ("layers", "static"),
}
"""The ways to which a setting belongs; the others belong to all."""


@dataclass(frozen=True, kw_only=True)
class DistillRequest:
    """Teacher, texts, student and the way from one to the other; how to train is said by TrainOptions."""

    teacher: str | Path
    out: Path
    how: How
    data: Any = None
    student: str | Path | None = None
    objective: PairObjective = "regression"
    """Of pairs: bring cosines to the teacher's scores, or only into their order."""
    neighbours: int = 3
    """Of pairs, where the data has single texts: the nearest so many of each are labelled."""
    random_pairs: int = 3
    """And so many random ones."""
    bridge: Bridge = "auto"
    """Of vectors of different sizes: reduce the teacher's (pca), or give the student a layer more (dense)."""
    layers: int | None = None
    """Of layers: how many stay, evenly spaced."""
    keep: tuple[int, ...] = ()
    """Of layers: which stay, from 0."""
    dim: int | None = None
    """Of static: numbers in a vector. None: 256."""
    train: bool | None = None
    """Of layers and static: train after the cut or the fit. None: layers yes, static no."""
    columns: Mapping[str, str] | None = None
    """Role to column, where the names do not say it."""
    resume: bool = False

    def __post_init__(self) -> None:
        for name, known in (("how", How), ("objective", PairObjective), ("bridge", Bridge)):
            if getattr(self, name) not in get_args(known):
                listed = ", ".join(get_args(known))
                raise InputError(f"{name} must be one of {listed}, got {getattr(self, name)!r}")
        for option in fields(self):
            ways = _ONLY.get(option.name)
            if ways and self.how not in ways and getattr(self, option.name) != option.default:
                raise InputError(f"{option.name} belongs to how={' or '.join(ways)}, not to how={self.how}")
        for name in ("neighbours", "random_pairs"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.how in ("pairs", "vectors") and self.student is None:
            raise InputError(f"how={self.how} trains a student. Name the model it starts from (--student)")
        if self.data is None and (self.trains or self.how in ("pairs", "vectors")):
            raise InputError("training a student needs texts. Give some (--data FILE)")

    @property
    def trains(self) -> bool:
        """Whether torch has work to do."""
        return self.how != "static" if self.train is None else self.train


def likely_how(*, cross: bool, student: bool, layers: bool) -> How:
    """The way that is meant when none is named."""
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
    """Texts a second on this machine, measured once; None: not measured."""
    unit: str = "texts"
    """What the speed counts: a cross-encoder reads pairs."""

    def summary(self) -> str:
        fast = "" if self.speed is None else f", {self.speed:,.0f} {self.unit}/s"
        return f"{self.name}: {self.megabytes:,.1f} MB{fast}"


@dataclass(frozen=True)
class DistillResult:
    """A student in a folder."""

    folder: Path
    how: str
    teacher: ModelSide
    student: ModelSide
    dim: int
    learnt_from: str
    """Such as "1,200 texts"; empty: the teacher's vocabulary or layers alone."""
    before: StudentAgreement | None
    """Of the student before it learnt; None where nothing could be measured, for want of texts."""
    after: StudentAgreement | None
    held_out: bool
    """The agreement is of texts that were not learnt from."""
    notes: tuple[str, ...] = ()
    trained: TrainResult | None = None

    def to_json(self) -> dict[str, Any]:
        trained = None if self.trained is None else self.trained.to_json()
        return {**asdict(self), "folder": str(self.folder), "notes": list(self.notes), "trained": trained}

    def summary(self) -> str:
        """Some lines for a person."""
        lines = [f"{self.folder}: {self.student.name}, {self.dim} dimensions, by {self.how}"]
        lines += [f"teacher {self.teacher.summary()}", f"student {self.student.summary()}"]
        lines += self.agreement_lines()
        return "\n".join(lines)

    def agreement_lines(self) -> list[str]:
        if self.after is None:
            return []
        where = "texts held back" if self.held_out else "the texts it learnt from (too few to hold some back)"
        lines = [f"agreement with the teacher, Spearman x 100 on {where}:"]
        if self.before is not None:
            lines.append(f"  before: {self.before.summary()}")
        return [*lines, f"  after:  {self.after.summary()}"]
