"""What a plan is asked for: how many texts, which network, which machines, what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from gemel.errors import InputError
from gemel.options import Precision, parse_bytes


@dataclass(frozen=True, kw_only=True)
class Question:
    """The defaults of the network are those of all-MiniLM-L6-v2."""

    texts: float
    """Texts in all; 1e9 is a way to write it."""
    mean_tokens: float = 20.0
    """Tokens of a text on average, marks included."""
    text_bytes: float | None = None
    """Bytes of a text on average. None: 4 a token."""
    dim: int = 384
    """Numbers of a stored vector."""
    layers: int = 6
    """Blocks of the network."""
    width: int = 384
    """Numbers of a token inside the network."""
    inner: int = 1536
    """Numbers of its feed-forward step."""
    precision: Precision = "float32"
    """Numbers used in the computation: float32, or int8 (faster, nearly as good)."""
    cores: int = 64
    """Cores of one machine."""
    memory: int | str = "256GB"
    """Memory of one machine."""
    machines: int = 1
    """Machines for encoding and pairs. An index is built and held whole by each."""
    queries_per_second: float = 10.0
    """Searches, each with a text to encode."""
    block: int = 2048
    """Documents a commit of the index, as in `gemel index add`."""
    price_core_hour: float = 0.04
    """Money for a core for an hour."""
    price_gb_month: float = 0.02
    """Money for a gigabyte on disk for a month."""

    def __post_init__(self) -> None:
        for name in ("texts", "mean_tokens", "dim", "layers", "width", "inner", "cores", "machines"):
            if not 1 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be a number of at least 1, got {getattr(self, name)!r}")
        if self.block < 1:
            raise InputError(f"block must be at least 1, got {self.block}")
        for name in ("queries_per_second", "price_core_hour", "price_gb_month"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} must not be negative, got {getattr(self, name)!r}")
        if self.text_bytes is not None and self.text_bytes < 0:
            raise InputError(f"text_bytes must not be negative, got {self.text_bytes!r}")
        if self.precision not in ("float32", "int8"):
            raise InputError(f"precision must be one of float32, int8, got {self.precision!r}")
        parse_bytes(self.memory)

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory)

    @property
    def bytes_of_text(self) -> float:
        return 4 * self.mean_tokens if self.text_bytes is None else self.text_bytes

    def flop(self, tokens: float) -> float:
        """Operations of the network for one text: its matrices for each token, and the attention."""
        weights = self.layers * (4 * self.width**2 + 2 * self.width * self.inner)
        return 2 * weights * tokens + self.layers * 4 * tokens**2 * self.width
