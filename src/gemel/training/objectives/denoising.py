"""Denoising auto-encoder, TSDAE (arXiv 2104.06979): texts without labels, rebuilt from their vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemel.training.objectives.base import Needs, Objective, check_share, register

if TYPE_CHECKING:
    from torch import Tensor, device, nn

MOST_HEADS = 12


@register("denoising")
@dataclass(frozen=True)
class Denoising(Objective):
    """Denoising (TSDAE): rebuild a text from the vector of the text with some tokens removed."""

    noise: float = 0.6
    """Share of the tokens that are removed."""

    def __post_init__(self) -> None:
        check_share("noise", self.noise)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(texts=("text",), label="tokens", noise=self.noise)

    def weights(self, dim: int, classes: int) -> nn.Module:
        """The decoder, which is not saved: one layer that sees the vector and the tokens so far.

        `classes` is the size of the vocabulary. There is no dropout: the noise is in the text.
        """
        from torch import nn

        heads = max(count for count in range(1, MOST_HEADS + 1) if dim % count == 0)
        layer = nn.TransformerDecoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        tokens = nn.Embedding(classes, dim)
        start = nn.Embedding(1, dim)  # before the first token
        for table in (tokens, start):
            nn.init.normal_(table.weight, std=0.02)
        return nn.ModuleDict({"words": tokens, "start": start, "layer": layer, "norm": nn.LayerNorm(dim)})

    def __call__(
        self, vectors: tuple[Tensor, ...], label: Tensor | None, weights: nn.Module | None = None
    ) -> Tensor:
        from torch.nn.functional import cross_entropy

        assert label is not None, "the loop passes the tokens of the text"
        assert weights is not None, "the loop passes what `weights` made"
        logits = decode(vectors[0], label, weights)
        total = cross_entropy(logits.flatten(0, 1), label.flatten(), ignore_index=-100, reduction="sum")
        return total / (label != -100).sum().clamp(min=1)


# n texts, t tokens, d numbers per vector


def decode(vectors: Tensor, label: Tensor, weights: nn.Module) -> Tensor:
    """(n, t, vocabulary): logits of token i, from the vector and the tokens before i."""
    import torch
    from torch import nn

    rows, length = label.shape
    start = weights["start"].weight.expand(rows, 1, -1)
    # Padding (-100) is at the end, which no real token attends to; any token will do.
    before = torch.cat([start, weights["words"](label[:, :-1].clamp(min=0))], dim=1)  # (n, t, d)
    before = before + _position_vectors(length, vectors.shape[1], vectors.device)
    mask = nn.Transformer.generate_square_subsequent_mask(length, device=vectors.device)
    state = weights["layer"](before, vectors[:, None], tgt_mask=mask, tgt_is_causal=True)  # (n, t, d)
    return weights["norm"](state) @ weights["words"].weight.T


def _position_vectors(length: int, dim: int, where: device) -> Tensor:
    """(t, d): sines and cosines of the position, as small as the vector of a new token."""
    import torch

    half = torch.arange((dim + 1) // 2, device=where)
    turn = torch.arange(length, device=where)[:, None] * 10_000.0 ** (-2 * half / dim)
    return 0.02 * torch.cat([turn.sin(), turn.cos()], dim=1)[:, :dim]
