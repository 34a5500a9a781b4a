"""The engines of one model: one for each precision, opened when first asked for and kept."""

from __future__ import annotations

import threading

from gemel.checkpoint.folder import Checkpoint
from gemel.encoder.engines.choose import open_engine, open_pair_engine
from gemel.encoder.engines.port import Engine
from gemel.encoder.network import Network
from gemel.options import EngineName, Precision


class Engines:
    """Safe to use from several threads: two that ask at once get the same engine."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        engine: EngineName,
        device: str,
        network: Network | None = None,
        typed: bool | None = None,
    ) -> None:
        """`typed`: a cross-encoder that torch runs with its head. `network` is run instead of the checkpoint's own."""
        self._typed = typed
        self._checkpoint, self._engine, self._device, self._network = checkpoint, engine, device, network
        self._opened: dict[Precision, Engine] = {}
        self._opening = threading.Lock()

    def __getitem__(self, precision: Precision) -> Engine:
        with self._opening:
            if precision not in self._opened:
                self._opened[precision] = self._open(precision)
            return self._opened[precision]

    def _open(self, precision: Precision) -> Engine:
        if self._typed is not None:
            return open_pair_engine(
                self._checkpoint,
                typed=self._typed,
                precision=precision,
                device=self._device,
                engine=self._engine,
            )
        return open_engine(
            self._checkpoint,
            precision=precision,
            device=self._device,
            engine=self._engine,
            network=self._network,
        )
