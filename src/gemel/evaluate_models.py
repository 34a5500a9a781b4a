"""Models by name through an evaluation: opens what was named, and keeps in the protocol how it encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from gemel.checkpoint.fingerprint import Fingerprint
from gemel.checkpoint.folder import is_cross_encoder, is_model_folder
from gemel.checkpoint.sources import find_model, warn_of_folder
from gemel.cross_model import load_cross
from gemel.errors import InputError
from gemel.evaluation.baselines import is_baseline, open_baseline
from gemel.evaluation.run import score_tasks
from gemel.evaluation.scores import Scores
from gemel.evaluation.task import Task, load_task
from gemel.model import Model, load
from gemel.options import EncodeOptions
from gemel.types import AnyVectors, Encoder

_CHANGE_NOTHING = ("threads", "memory", "progress")  # options that no vector depends on


def evaluate(
    model: Encoder | str | Path,
    *,
    task: str,
    data: str | Path,
    metric: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    options: EncodeOptions | None = None,
    pooling: str | None = None,
    **settings: Any,
) -> list[Scores]:
    """The scores of a model, or of anything with an `encode`, on each data set of a file or folder; then the average.

    `metric` is a similarity or "all", `rounds` and `seed` belong to the bootstrap intervals; None is the task's
    default. `options` and `pooling` are for a model given by name or folder. `settings` go to the task.
    """
    tasks = load_task(task, data, metric=metric, rounds=rounds, seed=seed, **settings)
    encoder = open_encoder(model, options=options, pooling=pooling)
    return list(score_model(tasks, encoder, name=name_of(model, encoder)))


def name_of(model: Encoder | str | Path, encoder: Encoder) -> str:
    """What results call it: a baseline by all that was typed, anything else by its own name or its class."""
    if isinstance(model, str) and _names_baseline(model):
        return model
    return str(getattr(encoder, "name", "") or type(encoder).__name__)


def score_model(tasks: Sequence[Task], encoder: Encoder, *, name: str | None = None) -> Iterator[Scores]:
    """Each result as soon as it is there; its protocol has the options and the fingerprint of a gemel model."""
    known = _known(encoder)
    for scores in score_tasks(tasks, encoder, name=name):
        yield replace(scores, protocol={**scores.protocol, **known})


def open_encoder(
    model: Encoder | str | Path, *, options: EncodeOptions | None = None, pooling: str | None = None
) -> Encoder:
    """A model by name or folder, a baseline such as "glove:vectors.txt", or the encoder itself."""
    changes = _changes(options or EncodeOptions())
    if not isinstance(model, str | Path):
        if changes or pooling:
            raise InputError(
                "options and pooling are for a model given by name or folder, not for an encoder"
            )
        return model
    if _names_baseline(model):
        if pooling or set(changes) - set(_CHANGE_NOTHING):
            raise InputError(f"the baseline {model} takes no options of encoding")
        return open_baseline(str(model))
    if changes.get("output") == "binary":
        raise InputError("output 'binary' holds bits, which no similarity here compares. Use 'int8'")
    if is_cross_encoder(folder := find_model(model)):
        if pooling or set(changes) - set(_CHANGE_NOTHING):
            raise InputError(f"{model} is a cross-encoder, which takes no options of encoding")
        return cast("Encoder", load_cross(folder))  # tasks that need vectors refuse it by name
    loaded = load(model, pooling=pooling, precision=changes.get("precision", "float32"))
    return EncodingModel(loaded, changes, pooling) if changes or pooling else loaded


@dataclass(frozen=True)
class EncodingModel:
    """A model that always encodes with the same options."""

    model: Model
    changes: Mapping[str, Any]
    """Fields of EncodeOptions that are not at their default."""
    pooling: str | None = None

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def dim(self) -> int:
        return int(self.changes.get("dim") or self.model.dim)

    @property
    def encoding(self) -> dict[str, Any]:
        """What the vectors depend on."""
        kept = {name: value for name, value in self.changes.items() if name not in _CHANGE_NOTHING}
        return {"pooling": self.pooling, **kept} if self.pooling else kept

    @property
    def fingerprint(self) -> Fingerprint:
        return self.model.fingerprint_for(EncodeOptions(**self.changes))

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Of the classification head, if the model kept one."""
        return self.model.labels

    def relation(self, left: Sequence[str], right: Sequence[str]) -> AnyVectors:
        """The model's own under these options; it refuses those that its head does not fit."""
        return self.model.relation(left, right, **self.changes)

    def encode(self, texts: Sequence[str]) -> AnyVectors:
        return self.model.encode(texts, **self.changes)

    def encode_query(self, texts: Sequence[str]) -> AnyVectors:
        return self.model.encode_query(texts, **self.changes)

    def encode_document(self, texts: Sequence[str]) -> AnyVectors:
        return self.model.encode_document(texts, **self.changes)


def _known(encoder: Encoder) -> dict[str, Any]:
    """What the protocol tells of a gemel model; nothing of any other encoder."""
    if not isinstance(encoder, Model | EncodingModel):
        return {}
    encoding = encoder.encoding if isinstance(encoder, EncodingModel) else {}
    told = {"encoding": encoding} if encoding else {}
    return {**told, "fingerprint": encoder.fingerprint.to_json()}


def _changes(options: EncodeOptions) -> dict[str, Any]:
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value != getattr(EncodeOptions(), name)}


def _names_baseline(model: str | Path) -> bool:
    """A baseline is a known name: it wins over a folder of that name, unless it is written as a path."""
    if not isinstance(model, str) or not is_baseline(model):
        return False
    if is_model_folder(Path(model)):
        warn_of_folder(model)
    return True
