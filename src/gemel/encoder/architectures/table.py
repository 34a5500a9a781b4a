"""The table that the architecture files fill: HF `model_type` to the function that makes a Network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gemel.encoder.network import Array, Network
from gemel.registry import Table

Config: TypeAlias = Mapping[str, Any]  # config.json as it is: any JSON value
Reader: TypeAlias = Callable[[Config, Mapping[str, Array]], Network]

ARCHITECTURES: Table[Reader] = Table("architecture")
