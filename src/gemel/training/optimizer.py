"""AdamW over the network and the objective's own weights, and the step size at each step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gemel.training.options import TrainOptions

if TYPE_CHECKING:
    import torch
    from torch import nn


def open_optimizer(parts: list[nn.Module], options: TrainOptions) -> torch.optim.AdamW:
    """Biases and norms (all vectors, that is) are never decayed."""
    import torch

    trained = [weight for part in parts for weight in part.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in trained if weight.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [weight for weight in trained if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = all(weight.device.type in ("cpu", "cuda") for weight in trained)
    return torch.optim.AdamW(groups, lr=options.learning_rate, fused=fused)


def learning_rate(options: TrainOptions, step: int, steps: int) -> float:
    """The step size at `step` (from 0) of `steps`: it rises over the warm-up, then falls as `schedule` says."""
    rising = math.ceil(options.warmup * steps)
    if step < rising:
        return options.learning_rate * (step if options.warmup_from_zero else step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    left = {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1.0}
    return options.learning_rate * left[options.schedule]
