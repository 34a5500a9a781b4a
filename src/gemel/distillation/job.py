"""One distillation under way: its folder, its teacher, and the steps that several ways share.

out/                     the student, once it is done
  distillation/
    request.json         what was asked for
    pairs.jsonl          pairs with the teacher's scores
    vectors/             the teacher's vectors of the texts
    NAME/                the student before training
    result.json          what came of it
  training/              the run, if there is one
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemel.distillation.agreement import Measured, Yardstick
from gemel.distillation.request import DistillRequest
from gemel.distillation.result import Distilled, Side
from gemel.distillation.teacher import BiTeacher, CrossTeacher
from gemel.encode_folder import FolderProgress, encode_to_folder, read_folder
from gemel.errors import InputError
from gemel.model import Model, load
from gemel.progress import Progress
from gemel.text.rows import Row
from gemel.training.options import TrainOptions
from gemel.types import Vectors

if TYPE_CHECKING:
    from gemel.training.run import Trained

FOLDER = "distillation"


@dataclass(eq=False)
class Job:
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
        self, yardstick: Yardstick | None, before: Measured | None, learnt_from: str, trained: Trained | None
    ) -> Distilled:
        """Measure the student in its folder and write down what came of it."""
        from gemel.distillation.card import describe

        student = load(self.request.out)
        after = None if yardstick is None else yardstick.measure(student, threads=self.options.threads)
        if before and after and (after.agreement.all or 0) < (before.agreement.all or 0):
            self.note(
                "warning: the student agrees less with its teacher than before. Give more texts, or other settings"
            )
        cross = isinstance(self.teacher, CrossTeacher)
        speed = None if yardstick is None else yardstick.teacher_speed
        found = Distilled(
            folder=self.request.out,
            how=self.request.how,
            teacher=Side(
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


def _student(student: Model, after: Measured | None) -> Side:
    size = _megabytes(student.checkpoint.parts)
    return Side(student.name, size, None if after is None else after.speed)


def _megabytes(files: Sequence[Path]) -> float:
    return round(sum(path.stat().st_size for path in dict.fromkeys(files)) / 1e6, 2)
