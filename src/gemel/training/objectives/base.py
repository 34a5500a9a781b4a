"""The base class of objectives (losses): one declares the columns it needs, and turns vectors and labels into a loss.

An objective never sees a model. That is why the loop can encode each distinct text once, replay a batch that does not
fit in memory, and gather vectors from many processes, for every objective. It is a frozen dataclass in a file of its
own; its fields are its settings and become flags of `gemel train`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

from gemel.errors import InputError
from gemel.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

LabelKind: TypeAlias = Literal[
    "class", "score", "binary", "group", "margin", "scores", "vector", "tokens", "guide"
]
"""class: a name out of k · score: a number on the data's own scale · binary: 0 or 1 · group: texts with equal labels
belong together · margin: a number, left as it is · scores: a teacher's, of each document of a row · vector: a teacher's
vector · tokens: the text itself · guide: the vectors that another model gives the texts of the row."""


Distance: TypeAlias = Literal["euclidean", "cosine", "manhattan"]

ScoreName: TypeAlias = Literal["cosine", "dot", "maxsim"]
"""How a query and a document are compared. maxsim: by the vectors of their tokens (late interaction)."""


@dataclass(frozen=True)
class Needs:
    """The data that an objective needs."""

    texts: tuple[str, ...]
    """Roles of the text columns, in the order of the vectors."""
    label: LabelKind | None = None
    more: str | None = None
    """A role that any number of further columns may have: "negative" for negative1, negative2, ..."""
    distinct: bool = False
    """No text may be in two rows of a batch, since the rows are each other's negatives."""
    passes: int = 1
    """How often each text is encoded, each time with its own dropout (SimCSE: 2)."""
    noise: float = 0.0
    """Share of the tokens that are removed from a text before it is encoded (denoising)."""

    @property
    def labeled(self) -> bool:
        """The label is a column of the data: it is not made of the texts."""
        return self.label not in (None, "tokens", "guide")


class Objective:
    """Base class of all objectives: settings as dataclass fields, one call."""

    name: ClassVar[str] = ""
    """The name that users type; set by `register`."""
    needs: Needs
    """A class attribute, or a property if it depends on a setting."""

    def weights(self, dim: int, classes: int) -> nn.Module | None:
        """Its own weights, for vectors of `dim` numbers and `classes` labels, trained with the encoder; None: none."""
        return None

    def saved_weights(self, weights: nn.Module | None) -> nn.Module | None:
        """The part of its weights that is saved with the model; None: nothing."""
        return None

    def at(self, done: float) -> Objective:
        """The objective when this share of the steps is done; it is another one where a setting rises in training."""
        return self

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        """The mean loss of a batch, a scalar.

        `vectors`: one (n, dim) float32 tensor for each text column (times `passes`), extra columns at the end. Of late
        interaction (n, tokens, dim), with zeros after the last token of a text.
        `label`: (n,) int64 for class, binary and group; (n,) float32 for score (rescaled to 0..1 or -1..1 by the
        loop) and margin; (n, d) float32 for vector, (n, documents) for scores, (n, columns, d) for guide; (n, t) int64
        padded with -100 for tokens; None without label.
        """
        raise NotImplementedError


OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective", package="gemel.training.objectives", skip=("base", "matryoshka")
)
"""Objectives by the name that users type; each file of this folder that is not skipped is one."""


def register(name: str) -> Callable[[type[Objective]], type[Objective]]:
    """Class decorator: add an objective under the name that users type, which is that of its file."""

    def add(objective: type[Objective]) -> type[Objective]:
        objective.name = name
        return OBJECTIVES.add(name)(objective)

    return add


def make_objective(name: str, settings: Mapping[str, Any] | None = None) -> Objective:
    """An objective by name; a setting that is None is left at its default, an unknown one is refused."""
    return with_settings(OBJECTIVES[name], settings or {}, f"objective {name!r}")


def with_settings(cls: type[Objective], settings: Mapping[str, Any], what: str) -> Objective:
    """An objective of this class; an unknown setting is refused in a message about `what`."""
    given = {key: value for key, value in settings.items() if value is not None}
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in given:
        if key not in names:
            raise InputError(f"{what} has no setting {key!r}. It has {', '.join(names) or 'none'}")
    return cls(**given)


def check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"{name} must be more than 0, got {value!r}")


def check_share(name: str, value: float) -> None:
    """From 0 to below 1."""
    if not 0 <= value < 1:
        raise InputError(f"{name} must be from 0 to below 1, got {value!r}")


# Cosines, distances and losses that several objectives share. Zero vectors and equal vectors have finite gradients.


def unit(vectors: Tensor) -> Tensor:
    """Rows normalized to length 1; zeros stay zeros."""
    from torch.nn.functional import normalize

    # A vector shorter than eps is noise; a smaller eps would give it a larger gradient.
    return normalize(vectors, dim=-1, eps=1e-6)


def cosine_rows(left: Tensor, right: Tensor) -> Tensor:
    """(n,): the cosine of row i of both."""
    return (unit(left) * unit(right)).sum(-1)


def cosine_table(left: Tensor, right: Tensor) -> Tensor:
    """(n, m): the cosine of every row of `left` with every row of `right`."""
    return unit(left) @ unit(right).T


_MAXSIM_NUMBERS = 2**24  # of a block of similarities between tokens: 64 MB


def score_table(left: Tensor, right: Tensor, score: ScoreName) -> Tensor:
    """(n, m): the score of every query of `left` with every document of `right`."""
    if score == "maxsim":
        return maxsim_table(left, right)
    return cosine_table(left, right) if score == "cosine" else left @ right.T


def score_rows(left: Tensor, right: Tensor, score: ScoreName) -> Tensor:
    """(n,): the score of query i with document i."""
    if score == "maxsim":
        similarity = left @ right.transpose(1, 2)  # (n, query tokens, document tokens)
        return _best_of_document(similarity, right[:, None]).sum(1)
    return cosine_rows(left, right) if score == "cosine" else (left * right).sum(-1)


def maxsim_table(queries: Tensor, documents: Tensor) -> Tensor:
    """(n, m): for each token of query i the largest dot product with a token of document j, summed.

    A zero vector is no token: as a query's it adds nothing, as a document's it is never the largest.
    """
    import torch

    rows, tokens, dim = queries.shape
    flat = documents.reshape(-1, dim).T  # (dim, m * document tokens)
    size = max(1, _MAXSIM_NUMBERS // max(1, tokens * flat.shape[1]))
    blocks = []
    for block in queries.split(size):  # the table of all tokens at once would not fit in memory
        similarity = (block.reshape(-1, dim) @ flat).view(len(block), tokens, *documents.shape[:2])
        blocks.append(_best_of_document(similarity.transpose(1, 2), documents[None, :, None]).sum(2))
    return torch.cat(blocks) if rows else queries.new_zeros(0, len(documents))


def _best_of_document(similarity: Tensor, documents: Tensor) -> Tensor:
    """The largest of the last axis, among the tokens that a document has; 0 for a document without one."""
    import torch

    present = (documents != 0).any(-1)
    lowest = torch.finfo(similarity.dtype).min
    # `max` along an axis keeps positions for its gradient, `amax` would keep the whole table.
    best = similarity.masked_fill(~present, lowest).max(-1).values
    return torch.where(present.any(-1), best, 0.0)


def distance_rows(left: Tensor, right: Tensor, metric: Distance) -> Tensor:
    """(n,): the distance of row i of both; cosine distance is 1 - cosine."""
    import torch

    if metric == "cosine":
        return 1 - cosine_rows(left, right)
    return torch.linalg.vector_norm(left - right, ord=1 if metric == "manhattan" else 2, dim=-1)


def distance_table(vectors: Tensor, metric: Distance) -> Tensor:
    """(n, n): the distance of every row from every row."""
    import torch

    if metric == "cosine":
        return 1 - cosine_table(vectors, vectors)
    # For many rows torch would use a matrix product, which loses precision when two rows are near.
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(vectors, vectors, p=1.0 if metric == "manhattan" else 2.0, compute_mode=exact)


def info_nce(scores: Tensor) -> Tensor:
    """Cross-entropy of a table of scores (n, m), m >= n, in which row i belongs to column i."""
    import torch
    from torch.nn.functional import cross_entropy

    return cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def rank_by_score(similarity: Tensor, gold: Tensor, temperature: float) -> Tensor:
    """log(1 + sum of exp((s_j - s_i) / temperature)) over all i, j with gold_i > gold_j.

    0 for a batch in which all gold scores are equal.
    """
    import torch

    gaps = (similarity[None, :] - similarity[:, None]) / temperature  # [i, j] = s_j - s_i
    unordered = gold[:, None] <= gold[None, :]
    terms = gaps.masked_fill(unordered, -torch.inf).flatten()
    return torch.logsumexp(torch.cat([terms.new_zeros(1), terms]), dim=0)  # the zero is the 1 of the formula


@dataclass(frozen=True)
class ObjectiveSetting:
    """A setting that some objectives have."""

    name: str
    annotation: object
    defaults: Mapping[str, Any]
    """Objective to its default."""
    owner: type
    """The class whose field has the docstring to show."""


def all_settings() -> list[ObjectiveSetting]:
    """Every setting once, by name; objectives that share a name share its meaning."""
    settings: dict[str, ObjectiveSetting] = {}
    for name in OBJECTIVES:
        cls = OBJECTIVES[name]
        types = get_type_hints(cls)
        for field in fields(cls):  # type: ignore[arg-type]
            earlier = settings.get(field.name)
            defaults = {**(earlier.defaults if earlier else {}), name: field.default}
            owner = earlier.owner if earlier else cls
            settings[field.name] = ObjectiveSetting(field.name, types[field.name], defaults, owner)
    return [settings[name] for name in sorted(settings)]


@dataclass(frozen=True)
class ObjectiveInfo:
    """An objective and the columns it needs with the settings in `when`."""

    name: str
    when: dict[str, tuple[str, ...]]
    """Setting to values; empty for the defaults."""
    needs: Needs
    about: str
    """One line."""

    @property
    def columns(self) -> str:
        """The text columns as text."""
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


def list_objectives() -> list[ObjectiveInfo]:
    """All objectives by name; one whose columns depend on a setting is listed for each."""
    return [row for name in OBJECTIVES for row in _forms(name, OBJECTIVES[name])]


def _forms(name: str, cls: type[Objective]) -> list[ObjectiveInfo]:
    about = (cls.__doc__ or "").partition("\n")[0]
    rows = [ObjectiveInfo(name, {}, cls().needs, about)]
    types = get_type_hints(cls)
    for field in fields(cls):  # type: ignore[arg-type]
        if get_origin(types[field.name]) is not Literal:
            continue
        others: dict[Needs, tuple[str, ...]] = {}
        for value in get_args(types[field.name]):
            needs = cls(**{field.name: value}).needs
            if needs != rows[0].needs:
                others[needs] = (*others.get(needs, ()), value)
        rows += [ObjectiveInfo(name, {field.name: values}, needs, about) for needs, values in others.items()]
    return rows
