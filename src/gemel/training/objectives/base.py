"""The shape of every objective: it declares the columns it needs, and turns vectors and labels into one number.

An objective never sees a model. That seam is what lets the loop run each distinct text once, replay a batch that
does not fit in memory, and gather vectors from many processes, for all objectives alike.
An objective is a frozen dataclass in a file of its own; its fields are its settings and become flags of
`gemel train`. `OBJECTIVE_FILES` names the file of each, so that only the one that is asked for is imported.

Checks of an objective's settings, made when it is built.

All settings of all objectives, for a command line that takes any of them.

What there is to choose from: each objective with the columns it needs, for a command and a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

from gemel.errors import InputError
from gemel.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

LabelKind: TypeAlias = Literal["class", "score", "binary", "group", "margin", "vector", "tokens"]
"""class: a name out of k · score: a number on the data's own scale · binary: 0 or 1 · group: texts with equal labels
belong together · margin: a number, left as it is · vector: a teacher's vector · tokens: the text itself."""


@dataclass(frozen=True)
class Needs:
    """What an objective asks of the data."""

    texts: tuple[str, ...]
    """Roles of the text columns, in the order in which the vectors come."""
    label: LabelKind | None = None
    more: str | None = None
    """A role that any number of further columns may have: "negative" for negative1, negative2, ..."""
    distinct: bool = False
    """No text may stand in two rows of a batch: the rows are each other's negatives."""
    passes: int = 1
    """Times that each text goes through the encoder, each with a dropout of its own (SimCSE: 2)."""
    noise: float = 0.0
    """Share of the words that are taken out of a text before it is encoded (denoising)."""


class Objective:
    """Base of all objectives: settings as dataclass fields, one call."""

    name: ClassVar[str] = ""
    """The name that users type; set by `register`."""
    needs: Needs
    """A class attribute, or a property where a setting decides."""

    def weights(self, dim: int, classes: int) -> nn.Module | None:
        """Weights of its own, trained with the encoder: `dim` numbers a vector, `classes` labels; None: it has none."""
        return None

    def kept(self, weights: nn.Module | None) -> nn.Module | None:
        """The part of its weights that is of use after training and saved with the model; None: nothing."""
        return None

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        """The mean loss of a batch, a scalar.

        `vectors`: one (n, dim) float32 tensor for each text column (times `passes`), extra columns at the end.
        `label`: (n,) int64 for class, binary and group; (n,) float32 for score (rescaled to 0..1 or -1..1 by the
        loop) and margin; (n, d) float32 for vector; (n, t) int64 padded with -100 for tokens; None without label.
        """
        raise NotImplementedError


OBJECTIVES: Registry[type[Objective]] = Registry("objective")
"""Filled by `@register("name")` on each class."""

OBJECTIVE_FILES = {
    "angle": "angle",
    "classification": "classification",
    "contrastive": "contrastive",
    "cosent": "cosent",
    "denoising": "denoising",
    "in-batch-ranking": "in_batch_ranking",
    "margin-mse": "margin_mse",
    "regression": "regression",
    "simcse": "simcse",
    "soft-label": "soft_label",
    "triplet": "triplet",
    "vector-distillation": "vector_distillation",
}
"""Objective to the module of this package that defines it."""


def register(name: str) -> Any:  # noqa: ANN401 - a class decorator that gives back the class it gets
    """Class decorator: enter an objective under the name that users type."""

    def enter(objective: type[Objective]) -> type[Objective]:
        objective.name = name
        return OBJECTIVES.add(name)(objective)

    return enter


def objective_class(name: str) -> type[Objective]:
    """The class of this name; imports its file."""
    if name in OBJECTIVE_FILES:
        import_module(f"gemel.training.objectives.{OBJECTIVE_FILES[name]}")
    elif name not in OBJECTIVES:
        close = get_close_matches(name, OBJECTIVE_FILES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        known = ", ".join(sorted({*OBJECTIVE_FILES, *OBJECTIVES}))
        raise InputError(f"unknown objective {name!r}.{hint} Known: {known}")
    return OBJECTIVES[name]


def make_objective(name: str, settings: Mapping[str, Any] | None = None) -> Objective:
    """An objective by name; a setting that is None is left at its default, an unknown one is refused."""
    cls = objective_class(name)
    given = {key: value for key, value in (settings or {}).items() if value is not None}
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise InputError(
                f"objective {name!r} has no setting {key!r}. It has {', '.join(known) or 'none'}"
            )
    return cls(**given)


def check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"{name} must be more than 0, got {value!r}")


def check_share(name: str, value: float) -> None:
    """From 0 up to, but not with, 1."""
    if not 0 <= value < 1:
        raise InputError(f"{name} must be from 0 to below 1, got {value!r}")


def check_one_of(name: str, value: str, known: Any) -> None:  # noqa: ANN401 - a Literal type
    """`known` is a Literal, the same that annotates the field."""
    if value not in get_args(known):
        raise InputError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")


@dataclass(frozen=True)
class Setting:
    """One name that some objectives have a setting for."""

    name: str
    annotation: object
    defaults: Mapping[str, Any]
    """Objective to its default."""
    owner: type
    """The class whose docstring of the field explains it."""


def all_settings() -> list[Setting]:
    """Every setting once, by name; objectives that share a name share its meaning."""
    found: dict[str, Setting] = {}
    for name in sorted(OBJECTIVE_FILES):
        cls = objective_class(name)
        types = get_type_hints(cls)
        for field in fields(cls):  # type: ignore[arg-type]
            known = found.get(field.name)
            defaults = {**(known.defaults if known else {}), name: field.default}
            found[field.name] = Setting(
                field.name, types[field.name], defaults, known.owner if known else cls
            )
    return [found[name] for name in sorted(found)]


@dataclass(frozen=True)
class Listed:
    """An objective and the columns it needs, under the settings that `when` says."""

    name: str
    when: dict[str, tuple[str, ...]]
    """Setting to values; empty for the defaults."""
    needs: Needs
    about: str
    """One line."""

    @property
    def columns(self) -> str:
        """The text columns in words."""
        more = f" (+ more {self.needs.more}s)" if self.needs.more else ""
        return ", ".join(self.needs.texts) + more

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "when": {setting: list(values) for setting, values in self.when.items()},
            "texts": list(self.needs.texts),
            "more": self.needs.more,
            "label": self.needs.label,
            "about": self.about,
        }


def listed() -> list[Listed]:
    """All objectives by name; one that needs other columns under another setting stands there again."""
    return [row for name in sorted(OBJECTIVE_FILES) for row in _forms(name, objective_class(name))]


def _forms(name: str, cls: type[Objective]) -> list[Listed]:
    about = (cls.__doc__ or "").partition("\n")[0]
    rows = [Listed(name, {}, cls().needs, about)]
    types = get_type_hints(cls)
    for field in fields(cls):  # type: ignore[arg-type]
        if get_origin(types[field.name]) is not Literal:
            continue
        others: dict[Needs, tuple[str, ...]] = {}
        for value in get_args(types[field.name]):
            needs = cls(**{field.name: value}).needs
            if needs != rows[0].needs:
                others[needs] = (*others.get(needs, ()), value)
        rows += [Listed(name, {field.name: values}, needs, about) for needs, values in others.items()]
    return rows
