"""TrainOptions: every option of training, for the Python API, the command line and the file in the output folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gemel.errors import InputError
from gemel.options import check_choice, check_count, with_keywords

Schedule = Literal["linear", "cosine", "constant"]
MixedPrecision = Literal["no", "bf16", "fp16"]
Mixing = Literal["proportional", "round-robin"]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a model is trained. The defaults are those of the Sentence-BERT paper."""

    epochs: float = 1.0
    """Passes over the data; fractions are allowed."""
    max_steps: int | None = None
    """Stop after this many steps; the schedule covers them. None: as many as `epochs` needs."""
    batch_size: int = 16
    """Rows per step, in all processes together."""
    learning_rate: float = 2e-5
    """The highest learning rate of AdamW, reached after the warm-up."""
    head_learning_rate: float | None = None
    """The same for the objective's own weights (the head of classification, the decoder of denoising). None:
    `learning_rate`."""
    schedule: Schedule = "linear"
    """The learning rate after the warm-up: linear or cosine to zero, or constant."""
    warmup: float = 0.1
    """Share of the steps over which the learning rate rises from zero."""
    warmup_from_zero: bool = False
    """Start the warm-up with a learning rate of 0, as transformers' schedules do; else the first step already has a
    part of it."""
    weight_decay: float = 0.0
    """Weight decay of AdamW; biases and norms are never decayed."""
    clip: float = 1.0
    """Largest norm of the gradient; a larger one is scaled down. 0: no limit."""
    clip_head: bool = True
    """Include the gradient of the objective's own weights (a head) in that norm and scale it too;
    sentence-transformers clips the network only."""
    accumulate: int = 1
    """Batches whose gradients are averaged for a step."""
    cache_texts: int | None = None
    """Gradient cache: texts that are encoded at a time; the gradient is still that of the whole batch."""
    query_flops: float = 5e-5
    """Sparse encoders: weight of the FLOPS regularizer of queries; the larger, the fewer words a query has."""
    document_flops: float = 3e-5
    """Sparse encoders: weight of the FLOPS regularizer of documents."""
    flops_warmup: float = 0.33
    """Share of the steps over which the weights of the regularizers rise from zero, as the square of the steps."""
    inference_free: bool = False
    """Sparse encoders: queries need no network; a weight of each word is learned instead, the same in all queries."""
    token_dim: int | None = None
    """Late interaction: numbers in the vector of a token. None: as in the checkpoint, else 128."""
    query_length: int | None = None
    """Late interaction: tokens of a query; shorter ones are filled up with mask tokens. None: as in the checkpoint,
    else 32. That of documents is `max_length`."""
    query_expansion: bool = True
    """Late interaction: fill up queries with mask tokens, whose vectors count too."""
    matryoshka: tuple[int, ...] = ()
    """Also train vectors truncated to each of these sizes."""
    max_length: int | None = None
    """Tokens of a text, special tokens included; the rest is truncated. None: as in the checkpoint."""
    mixed_precision: MixedPrecision = "no"
    """Compute in bf16 or fp16 where the device supports it; weights stay float32."""
    gradient_checkpointing: bool = False
    """Compute hidden states again instead of storing them: less memory, about a third more time."""
    freeze_layers: int = 0
    """Do not train the token embeddings and this many of the first layers."""
    lora_rank: int | None = None
    """Train LoRA adapters of this rank instead of the weights (needs peft); merged when saved."""
    dropout: float | None = None
    """Dropout of the network. None: as in the checkpoint."""
    encode_repeats: bool = False
    """Encode a text that occurs several times in a batch each time, with its own dropout mask, as sentence-transformers
    does; else once, with one mask."""
    mixing: Mixing = "proportional"
    """Several data sets: batches in proportion to their sizes, or one of each in turn until the smallest ends."""
    group_by_length: bool = False
    """Put rows of similar length into a batch: a few percent faster, but batches are no longer random."""
    seed: int = 0
    """Seed of the order of rows, of dropout and of new weights."""
    device: str | None = None
    """"cpu", "cuda", "mps". None: the best one available."""
    threads: int | None = None
    """CPU cores to use. None: all that the process may use."""
    eval_steps: int | None = None
    """Steps between evaluations. None: ten evaluations in a run, at least 25 steps between them."""
    patience: int | None = None
    """Stop early after this many evaluations in a row without a better score. None: never."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints. None: one at each evaluation."""
    keep_checkpoints: int = 2
    """Checkpoints that stay on disk; older ones are removed. The best model is stored as well."""
    tracker: tuple[str, ...] = ()
    """Also log to tensorboard, wandb or mlflow, through accelerate."""
    skip_bad: bool = False
    """Leave out rows that cannot be used, and report how many."""
    force: bool = False
    """Train although the data checks find errors, and continue when the vectors collapse."""
    progress: bool = False
    """Show loss, texts per second and the time left on standard error."""

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("mixed_precision", self.mixed_precision, get_args(MixedPrecision))
        check_choice("mixing", self.mixing, get_args(Mixing))
        for name in _COUNTS:
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 0 if name == "freeze_layers" else 1)
        for name in ("epochs", "learning_rate", "head_learning_rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} must be more than 0, got {value!r}")
        for name in ("warmup", "dropout", "flops_warmup"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise InputError(f"{name} must be a share from 0 to below 1, got {value!r}")
        for name in ("weight_decay", "clip", "query_flops", "document_flops"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be 0 or more, got {getattr(self, name)!r}")

    @classmethod
    def of(cls, options: TrainOptions | None, keywords: Mapping[str, Any], what: str) -> TrainOptions:
        """`options`, or the defaults, with the fields in `keywords` replaced; an unknown name is an error."""
        return with_keywords(options or cls(), keywords, what)


_COUNTS = (
    "batch_size",
    "accumulate",
    "keep_checkpoints",
    "max_steps",
    "cache_texts",
    "token_dim",
    "query_length",
    "max_length",
    "lora_rank",
    "threads",
    "eval_steps",
    "patience",
    "checkpoint_steps",
    "freeze_layers",
)
