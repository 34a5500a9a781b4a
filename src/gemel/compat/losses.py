"""The common losses of sentence-transformers, each an objective of gemel, and `InputExample`, which they train on.

    examples = [InputExample(texts=["a man plays", "someone makes music"], label=0.8), ...]
    model.fit([(DataLoader(examples, batch_size=16), losses.CosineSimilarityLoss(model))], output_path="out")

A loss here has no computation of its own: `fit` gives its objective and settings to `gemel.train`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, NoReturn
from weakref import finalize

from gemel.errors import OTHER_NAMES, InputError
from gemel.model import Model, load


@dataclass
class InputExample:
    """A row of training data: texts, and a label (a number or the number of a class)."""

    guid: str = ""
    texts: Sequence[str] = ()
    label: int | float | Sequence[float] = 0


@dataclass(frozen=True)
class Loss:
    """A loss: the objective of gemel that computes it, its settings, and options of training that it needs."""

    objective: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


class SiameseDistanceMetric(Enum):
    """Distances of `ContrastiveLoss`."""

    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"
    COSINE_DISTANCE = "cosine"


class TripletDistanceMetric(Enum):
    """Distances of `TripletLoss`."""

    COSINE = "cosine"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"


def MultipleNegativesRankingLoss(  # noqa: N802 - their name
    model: object = None, scale: float = 20.0, similarity_fct: object = None
) -> Loss:
    """In-batch ranking, by cosine; `scale` is 1 / temperature."""
    _check_cosine(similarity_fct)
    return Loss("in-batch-ranking", {"temperature": 1 / scale})


def CachedMultipleNegativesRankingLoss(  # noqa: N802 - their name
    model: object = None, scale: float = 20.0, similarity_fct: object = None, mini_batch_size: int = 32
) -> Loss:
    """The same with a gradient cache: large batches in little memory."""
    loss = MultipleNegativesRankingLoss(model, scale, similarity_fct)
    return replace(loss, options={"cache_texts": mini_batch_size})


def MultipleNegativesSymmetricRankingLoss(  # noqa: N802 - their name
    model: object = None, scale: float = 20.0, similarity_fct: object = None
) -> Loss:
    """In-batch ranking in both directions."""
    _check_cosine(similarity_fct)
    return Loss("in-batch-ranking", {"temperature": 1 / scale, "symmetric": True})


def CosineSimilarityLoss(model: object = None) -> Loss:  # noqa: N802 - their name
    """Regression: the cosine of a pair should equal its label, from 0 (or -1) to 1."""
    return Loss("regression")


def CoSENTLoss(model: object = None, scale: float = 20.0, similarity_fct: object = None) -> Loss:  # noqa: N802 - their name
    """CoSENT: pairs in the order of their labels."""
    _check_cosine(similarity_fct)
    return Loss("cosent", {"temperature": 1 / scale})


def AnglELoss(model: object = None, scale: float = 20.0) -> Loss:  # noqa: N802 - their name
    """AnglE: as CoSENT, on angles."""
    return Loss("angle", {"temperature": 1 / scale})


def SoftmaxLoss(  # noqa: N802 - their name
    model: object = None,
    sentence_embedding_dimension: int | None = None,
    num_labels: int | None = None,
    concatenation_sent_rep: bool = True,
    concatenation_sent_difference: bool = True,
    concatenation_sent_multiplication: bool = False,
) -> Loss:
    """Classification of pairs; the number of labels is that of the data."""
    parts = ["u", "v"] if concatenation_sent_rep else []
    parts += ["|u-v|"] if concatenation_sent_difference else []
    parts += ["u*v"] if concatenation_sent_multiplication else []
    return Loss("classification", {"concat": ",".join(parts), "bias": True})


def ContrastiveLoss(  # noqa: N802 - their name
    model: object = None,
    distance_metric: SiameseDistanceMetric | str = SiameseDistanceMetric.COSINE_DISTANCE,
    margin: float = 0.5,
) -> Loss:
    """Contrastive: pairs labeled 1 together, pairs labeled 0 apart."""
    return Loss("contrastive", {"margin": margin, "metric": _distance(distance_metric)})


def OnlineContrastiveLoss(  # noqa: N802 - their name
    model: object = None,
    distance_metric: SiameseDistanceMetric | str = SiameseDistanceMetric.COSINE_DISTANCE,
    margin: float = 0.5,
) -> Loss:
    """Contrastive on the hard pairs of each batch."""
    loss = ContrastiveLoss(model, distance_metric, margin)
    return replace(loss, settings={**loss.settings, "online": True})


def TripletLoss(  # noqa: N802 - their name
    model: object = None,
    distance_metric: TripletDistanceMetric | str = TripletDistanceMetric.EUCLIDEAN,
    triplet_margin: float = 5,
) -> Loss:
    """Triplet: the anchor nearer to the positive than to the negative."""
    return Loss("triplet", {"margin": triplet_margin, "metric": _distance(distance_metric)})


def MarginMSELoss(model: object = None) -> Loss:  # noqa: N802 - their name
    """Margin-MSE: the teacher's difference of two scores."""
    return Loss("margin-mse")


def MSELoss(model: object = None) -> Loss:  # noqa: N802 - their name
    """Vector distillation: the label is the teacher's vector."""
    return Loss("vector-distillation")


def DenoisingAutoEncoderLoss(model: object = None, **others: object) -> Loss:  # noqa: N802 - their name
    """Denoising (TSDAE): gemel removes the tokens itself, so that an example is one text."""
    return Loss("denoising")


def MatryoshkaLoss(model: object, loss: Loss, matryoshka_dims: Sequence[int], **others: object) -> Loss:  # noqa: N802 - their name
    """A loss that also holds for the first numbers of a vector."""
    for name, value in others.items():
        if value not in (None, -1):
            raise InputError(f"MatryoshkaLoss of gemel.compat has no {name}: all dimensions count the same")
    return replace(loss, options={**loss.options, "matryoshka": tuple(sorted(matryoshka_dims))})


def __getattr__(name: str) -> NoReturn:
    known = [other for other in OTHER_NAMES if other in globals()]
    raise AttributeError(
        f"gemel.compat.losses has no {name!r}. It has {', '.join([*known, 'MatryoshkaLoss'])}; "
        "all objectives of gemel: docs/reference/objectives.md"
    )


def _check_cosine(similarity_fct: object) -> None:
    name = getattr(similarity_fct, "__name__", None)
    if similarity_fct is not None and name not in ("cos_sim", "pairwise_cos_sim", "pytorch_cos_sim"):
        raise InputError(f"the objective compares by cosine, got similarity_fct={name or similarity_fct!r}")


def _distance(metric: Enum | str) -> str:
    return str(metric.value if isinstance(metric, Enum) else metric)


def fit(
    model: Model,
    objectives: Sequence[tuple[Any, Loss]],
    out: str | Path | None,
    warmup_steps: int | None,
    options: Mapping[str, Any],
) -> Model:
    """`SentenceTransformer.fit`: the model after training on what the data loaders hold.

    Without `out`, its folder exists as long as the model does.
    """
    from gemel.training.train import train

    loaders, loss = [loader for loader, _ in objectives], _one_loss([loss for _, loss in objectives])
    datasets = [_examples(loader) for loader in loaders]
    rows = [_rows(each, loss) for each in datasets]
    batch = int(getattr(loaders[0], "batch_size", None) or 16)
    if warmup_steps is not None:
        steps = max(1, round(sum(map(len, rows)) / batch * options["epochs"]))
        options = {**options, "warmup": min(warmup_steps / steps, 0.99)}
    temporary = mkdtemp(prefix="gemel-fit-") if out is None else None
    target = Path(temporary or str(out)) / ("model" if temporary else "")
    train(
        model.checkpoint.folder,
        rows[0] if len(rows) == 1 else rows,
        objective=loss.objective,
        out=target,
        settings=loss.settings,
        score_range=_score_range(datasets, loss),
        batch_size=batch,
        **{**options, **loss.options},
    )
    trained = load(target)
    if temporary is not None:
        finalize(trained, rmtree, temporary, ignore_errors=True)
    return trained


def _one_loss(losses: Sequence[object]) -> Loss:
    first = losses[0] if losses else None
    if not isinstance(first, Loss):
        raise InputError(
            "fit takes [(data loader, loss)] with a loss of gemel.compat.losses, got "
            f"{type(first).__name__}. The gemel way: gemel.train(model, data, objective=..., out=...)"
        )
    if any(loss != first for loss in losses):
        raise InputError("fit trains with one loss, got several. Call fit once for each")
    return first


def _examples(loader: Any) -> list[InputExample]:  # noqa: ANN401 - a data loader of torch, or a list
    """The examples behind a data loader; a list is used as it is."""
    examples = list(getattr(loader, "dataset", loader))
    for position, example in enumerate(examples):
        if not hasattr(example, "texts") or not hasattr(example, "label"):
            raise InputError(f"example {position} must be an InputExample, got {type(example).__name__}")
    if not examples:
        raise InputError("fit got no examples")
    return examples


def _rows(examples: Sequence[InputExample], loss: Loss) -> list[tuple[Any, ...]]:
    from gemel.training.objectives.base import make_objective

    labeled = make_objective(loss.objective, loss.settings).needs.labeled
    return [(*example.texts, *((example.label,) if labeled else ())) for example in examples]


def _score_range(datasets: Sequence[Sequence[InputExample]], loss: Loss) -> tuple[float, float] | None:
    """Of labels that are cosines: they are used as they are, not stretched to the range of the data."""
    if loss.objective != "regression":
        return None
    labels = [example.label for examples in datasets for example in examples]
    return (
        (-1.0, 1.0) if any(isinstance(label, int | float) and label < 0 for label in labels) else (0.0, 1.0)
    )
