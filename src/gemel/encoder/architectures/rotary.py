"""Rotary positions as config.json describes them, with the ways of scaling that published checkpoints use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gemel.checkpoint.architecture import Config, key_set
from gemel.encoder.network import Array, Rotary, rotary_speeds
from gemel.encoder.weights import unsupported
from gemel.errors import ModelError

KEYS = "rope_parameters rope_scaling rope_theta"
"""Keys of config.json that `rotary_of` follows."""

_NAMES = key_set(
    "rope_type type rope_theta factor original_max_position_embeddings attention_factor beta_fast beta_slow",
    "mscale mscale_all_dim truncate low_freq_factor high_freq_factor",
)


def rotary_of(config: Config, size: int, *, kind: str | None = None, theta: float = 10_000.0) -> Rotary:
    """The rotary positions of heads of `size` numbers, of the layers of one `kind`; `theta` is the default base."""
    given = rope_parameters(config, kind)
    unknown = sorted(set(given) - _NAMES)
    if unknown and given.get(unknown[0]) not in (None, 1.0):
        raise unsupported(f"config.json sets {unknown[0]!r} of the rotary positions, which is not followed")
    if size % 2:
        raise ModelError(f"rotary positions need heads of an even size, config.json gives {size}")
    base = number(given, "rope_theta", theta, least=1.0)
    scaling = given.get("rope_type") or given.get("type") or "default"
    speeds = rotary_speeds(base, size)
    match scaling:
        # "dynamic" changes the base of texts that are longer than max_position_embeddings, and none are.
        case "default" | "dynamic":
            return Rotary(speeds)
        case "linear":
            return Rotary(speeds / np.float32(number(given, "factor")))
        case "ntk":
            factor = max(number(given, "factor"), 1.0)
            return Rotary(rotary_speeds(base * factor, size) / np.float32(factor ** (2 / size)))
        case "llama3":
            return Rotary(_llama3(given, speeds))
        case "yarn":
            return _yarn(config, given, base, size)
    raise unsupported(f"config.json scales the rotary positions in the way {scaling!r}, which is not known")


def rope_parameters(config: Config, kind: str | None = None) -> Mapping[str, Any]:
    """The settings of the rotary positions under their newer name or their two older ones."""
    given = config.get("rope_parameters")
    if isinstance(given, dict) and kind is not None and isinstance(given.get(kind), dict):
        given = given[kind]
    for value in (given, config.get("rope_scaling")):
        if value is not None and not isinstance(value, dict):
            raise ModelError(
                f"config.json must give the settings of rotary positions as an object, got {value!r:.60}"
            )
    older = {"rope_theta": config["rope_theta"]} if config.get("rope_theta") is not None else {}
    nested = {key for key, value in (given or {}).items() if isinstance(value, dict)}
    plain = {key: value for key, value in (given or {}).items() if key not in nested}
    return {**older, **(config.get("rope_scaling") or {}), **plain}


def number(
    settings: Mapping[str, Any], name: str, default: float | None = None, *, least: float = 0.0
) -> float:
    """A setting of the rotary positions: a number over `least`."""
    value = default if settings.get(name) is None else settings[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not least < value < 1e30:
        raise ModelError(
            f"config.json must give {name!r} of the rotary positions as a number over {least:g}, got {value!r:.60}"
        )
    return float(value)


def _llama3(given: Mapping[str, Any], speeds: Array) -> Array:
    """Slow rotations are slowed down by `factor`, fast ones are kept, those between them get something in between."""
    factor, context = number(given, "factor"), number(given, "original_max_position_embeddings")
    low, high = number(given, "low_freq_factor"), number(given, "high_freq_factor")
    waves = 2 * math.pi / speeds
    blend = (context / waves - low) / (high - low)
    between = (1 - blend) * speeds / factor + blend * speeds
    scaled = np.where(
        waves > context / low, speeds / factor, np.where(waves < context / high, speeds, between)
    )
    return scaled.astype(np.float32)


def _yarn(config: Config, given: Mapping[str, Any], base: float, size: int) -> Rotary:
    """YaRN (arXiv 2309.00071): fast rotations are kept, slow ones are interpolated, and scores are scaled."""
    context = number(given, "original_max_position_embeddings", config.get("max_position_embeddings"))
    longest = config.get("max_position_embeddings")
    factor = number(given, "factor", longest / context if isinstance(longest, int) else None)

    def dimension(turns: float) -> float:
        """Of the head, whose numbers turn so often over the original context."""
        return size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(number(given, "beta_fast", 32)), dimension(number(given, "beta_slow", 1))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = (np.arange(size // 2, dtype=np.float32) - low) / (high - low or 0.001)
    keep = 1 - np.clip(ramp, 0, 1)
    waves = np.power(base, np.arange(0, size, 2) / size).astype(np.float32)
    speeds = (1 / (factor * waves) * (1 - keep) + 1 / waves * keep).astype(np.float32)
    return Rotary(speeds, _yarn_scale(given, factor))


def _yarn_scale(given: Mapping[str, Any], factor: float) -> float:
    if given.get("attention_factor") is not None:
        return number(given, "attention_factor")

    def scale(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1

    if given.get("mscale") and given.get("mscale_all_dim"):
        return scale(number(given, "mscale")) / scale(number(given, "mscale_all_dim"))
    return scale(1)
