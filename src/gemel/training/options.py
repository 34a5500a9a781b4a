"""Every setting of training, once: Python keyword, command-line flag and the file in the output folder read this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gemel.errors import InputError

Schedule = Literal["linear", "cosine", "constant"]
MixedPrecision = Literal["no", "bf16", "fp16"]
Mixing = Literal["proportional", "round-robin"]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a model is trained. The defaults are the paper's recipe."""

    epochs: float = 1.0
    """Times that every row is seen; parts of an epoch are allowed."""
    max_steps: int | None = None
    """Stop after so many steps; the schedule is laid out for them. None: as `epochs` says."""
    batch_size: int = 16
    """Rows to a step, over all processes together."""
    learning_rate: float = 2e-5
    """The largest step size of AdamW, reached after the warm-up."""
    schedule: Schedule = "linear"
    """How the step size falls after the warm-up: linear or cosine to zero, or constant."""
    warmup: float = 0.1
    """Share of the steps over which the step size rises from zero."""
    warmup_from_zero: bool = False
    """Begin the warm-up with a step of size 0, which learns nothing, as transformers' schedules do; else the first
    step already has its share."""
    weight_decay: float = 0.0
    """Decay of AdamW; biases and norms are never decayed."""
    clip: float = 1.0
    """Largest norm of a gradient; longer ones are scaled down. 0: no limit."""
    clip_head: bool = True
    """Count the gradient of the objective's own weights (a head) in that norm and scale it too; sentence-transformers
    clips the network only."""
    accumulate: int = 1
    """Batches whose gradients are averaged before a step."""
    cache_texts: int | None = None
    """Gradient cache: texts that go through the encoder at a time; the gradient is that of the whole batch."""
    matryoshka: tuple[int, ...] = ()
    """Also train the first so many numbers of a vector, for each of these sizes."""
    max_length: int | None = None
    """Tokens of a text that count, marks included. None: as the checkpoint says."""
    mixed_precision: MixedPrecision = "no"
    """Compute in bf16 or fp16 where the device can; weights stay float32."""
    gradient_checkpointing: bool = False
    """Compute hidden states again instead of keeping them: less memory, about a third more work."""
    freeze_layers: int = 0
    """Leave the word table and the first so many layers as they are."""
    lora_rank: int | None = None
    """Train low-rank additions of this rank instead of the weights (needs peft); merged when saved."""
    dropout: float | None = None
    """Dropout of the network. None: as the checkpoint says."""
    encode_repeats: bool = False
    """Encode a text that occurs several times in a batch each time, with a dropout mask of its own, as
    sentence-transformers does; else once, with one mask for all."""
    mixing: Mixing = "proportional"
    """Several data sets: batches in proportion to their sizes, or one of each in turn until the smallest ends."""
    group_by_length: bool = False
    """Put rows of like length into a batch: a few percent faster, but batches are no longer a random choice of rows."""
    seed: int = 0
    """The seed of order, dropout and new weights."""
    device: str | None = None
    """"cpu", "cuda", "mps". None: the best that is there."""
    threads: int | None = None
    """Cores to use. None: all that the process may use."""
    eval_steps: int | None = None
    """Evaluate after so many steps. None: ten times in a run, at least 25 steps apart."""
    patience: int | None = None
    """Stop early when so many evaluations in a row bring nothing better. None: never."""
    checkpoint_steps: int | None = None
    """Write a checkpoint after so many steps. None: when it evaluates."""
    keep_checkpoints: int = 2
    """Checkpoints that stay on disk; older ones are removed. The best model is kept beside them."""
    tracker: tuple[str, ...] = ()
    """Also report to tensorboard, wandb or mlflow, through accelerate."""
    skip_bad: bool = False
    """Leave out rows that cannot be used, and say how many."""
    force: bool = False
    """Train although the doctor finds the data certainly wrong, and go on when the vectors collapse."""
    progress: bool = False
    """Show loss, texts per second and the time left on standard error."""

    def __post_init__(self) -> None:
        for name, known in (("schedule", Schedule), ("mixed_precision", MixedPrecision), ("mixing", Mixing)):
            if getattr(self, name) not in get_args(known):
                listed = ", ".join(get_args(known))
                raise InputError(f"{name} must be one of {listed}, got {getattr(self, name)!r}")
        for name in _COUNTS:
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0 if name == "freeze_layers" else 1)
        for name in ("epochs", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be more than 0, got {getattr(self, name)!r}")
        for name in ("warmup", "dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise InputError(f"{name} must be a share from 0 to below 1, got {value!r}")
        for name in ("weight_decay", "clip"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be 0 or more, got {getattr(self, name)!r}")


_COUNTS = (
    "batch_size",
    "accumulate",
    "keep_checkpoints",
    "max_steps",
    "cache_texts",
    "max_length",
    "lora_rank",
    "threads",
    "eval_steps",
    "patience",
    "checkpoint_steps",
    "freeze_layers",
)


def _whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
