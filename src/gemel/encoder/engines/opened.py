"""The engines of one model: one for each precision, opened when first asked for and kept."""

from __future__ import annotations

import threading

from gemel.checkpoint.folder import Checkpoint
from gemel.encoder.engines.choose import open_engine
from gemel.encoder.engines.port import Engine
from gemel.encoder.network import Network
from gemel.options import EngineName, Precision


class Engines:
    """Safe to use from several threads: two that ask at once get the same engine."""

    def __init__(
        self, checkpoint: Checkpoint, *, engine: EngineName, device: str, network: Network | None = None
    ) -> None:
        self._checkpoint, self._engine, self._device, self._network = checkpoint, engine, device, network
        self._opened: dict[Precision, Engine] = {}
        self._opening = threading.Lock()

    def __getitem__(self, precision: Precision) -> Engine:
        with self._opening:
            if precision not in self._opened:
                self._opened[precision] = open_engine(
                    self._checkpoint,
                    precision=precision,
                    device=self._device,
                    engine=self._engine,
                    network=self._network,
                )
            return self._opened[precision]
