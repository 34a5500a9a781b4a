"""Do the weights of a checkpoint fit its config.json? Asked before anything is allocated, and again after reading.

A weight that is missing would be random, one too many belongs to another network: both are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from gemel.errors import ModelError

MAX_LAYERS = 256
"""More is allowed where the checkpoint stores as many tensors; ALBERT's layers share theirs."""
MAX_SIZE = 2**26
"""Of a size that config.json gives, where no tensor of the checkpoint is that large."""
_HARMLESS = re.compile(r"(^|\.)(pooler\..*|position_ids|token_type_ids|(.*_)?inv_freq|masked_bias)$")
# What a body does not run: the parts that pretraining and classification add beside it.
_HEADS = re.compile(
    r"^((bert|roberta|electra|model|transformer)\.)?"
    r"(cls|lm_head|lm_predictions|mlm_head|predictions|generator\w*|discriminator\w*|sop_classifier|seq_relationship"
    r"|classifier|pre_classifier|qa_outputs|score|head|decoder|vocab_\w+|mask_predictions|pooler|sequence_summary"
    r"|pred_layer|logits_proj)\."
)
_SHOWN = 3
_LAYERS = re.compile(r"layers?$|num_hidden_groups$|inner_group_num$")
_SIZES = re.compile(r"size|dim|positions?|embeddings|heads|embd|experts|buckets|vocab|^d_")


def is_harmless(name: str) -> bool:
    """True for a weight on which no hidden state depends: a pooler, or a buffer that is computed anyway."""
    return _HARMLESS.search(name) is not None


def is_head(name: str) -> bool:
    """True for a weight of a head that stands after the network and is not run."""
    return _HEADS.search(name) is not None


def check_sizes(config: Mapping[str, Any], shapes: Iterable[tuple[int, ...]], where: str) -> None:
    """Refuse a config.json that asks for far more than its weights can hold."""
    listed = list(shapes)
    layers = max(MAX_LAYERS, len(listed))
    largest = max(MAX_SIZE, *(prod(shape) for shape in listed), 0)
    for key, value in _numbers(config):
        most = layers if _LAYERS.search(key) else largest
        if value > most and (most == layers or _SIZES.search(key)):
            raise ModelError(
                f"{where}: config.json gives {key} as {value:,}, but the checkpoint has only {len(listed):,} tensors "
                f"and {sum(map(prod, listed)):,} numbers. One of the two files is damaged or of another model"
            )


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Whole numbers of a config by their names, also those of configs inside it."""
    for key, value in config.items():
        if isinstance(value, int) and not isinstance(value, bool):
            yield str(key), value
        elif isinstance(value, Mapping) and str(key).endswith("config"):
            yield from _numbers(value)


def unexpected_in_body(used: Iterable[str], stored: Iterable[str]) -> list[str]:
    """Stored weights that lie between those that a network used, and that it did not use.

    A head beside the network, a pooler or a buffer does not count.
    """
    taken = set(used)
    start = _common_prefix(taken)
    roots = tuple({f"{start}{name[len(start) :].partition('.')[0]}." for name in taken})
    return sorted(
        name for name in stored if name not in taken and name.startswith(roots) and not is_harmless(name)
    )


def _common_prefix(names: set[str]) -> str:
    """The path that all names begin with, its last dot included."""
    low, high = min(names).split("."), max(names).split(".")
    same = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), 0)
    return "".join(f"{part}." for part in low[:same])


def refuse_unexpected(names: list[str], where: str) -> None:
    """An error that names them, if there are any."""
    if names:
        raise ModelError(
            f"{where}: the checkpoint holds {listing(names)}, which the network of its config.json does not have. "
            "config.json belongs to another model, or the weights were saved from a changed one"
        )


def refuse_missing(names: list[str], where: str) -> None:
    """An error that names them, if there are any."""
    if names:
        raise ModelError(
            f"{where}: the weights {listing(names)} are missing from the checkpoint. The file is not whole, or "
            "config.json belongs to another model; without them every load would give other vectors"
        )


def listing(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
