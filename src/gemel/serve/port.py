"""What routes may ask of the server around them. Routes parse and answer; `Services` does the work.

Three pieces that do not know one another: the routes (JSON in and out), the batcher (texts to vectors, fairly and
within limits), and the shell around them (keys, limits, logs, health).

What texts may be encoded together and share a vector: those asked for with the same options.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gemel.cross_model import CrossModel
from gemel.model import Model
from gemel.options import EncodeOptions
from gemel.serve.limits import Limits
from gemel.types import Vectors

if TYPE_CHECKING:
    from gemel.index.index import Index

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Ask:
    """How the texts of one request are to be encoded, and for whom."""

    client: str = ""
    """Who asks, for fairness: a key's name or an address. Never logged with texts."""
    prompt_name: str | None = None
    prompt: str | None = None
    normalize: bool | None = None
    dim: int | None = None
    cut: bool = True
    """False: a text over the model's length is refused; else it is cut and counted in `Embedded.kept`."""
    seconds: float | None = None
    """The caller's own deadline, from now; never longer than the server's."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Vectors in the order of the texts, the same bits as `Model.encode` gives offline."""

    vectors: Vectors
    tokens: NDArray[np.int64]
    """(n,) of each whole text, marks included."""
    kept: NDArray[np.int64]

    @property
    def total_tokens(self) -> int:
        return int(self.kept.sum())


class Services(Protocol):
    """One loaded model and what was loaded beside it."""

    @property
    def model(self) -> Model: ...

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        ...

    @property
    def cross(self) -> CrossModel | None:
        """Reranks; None: rerank routes answer with the bi-encoder's cosine."""
        ...

    @property
    def cross_name(self) -> str | None: ...

    @property
    def indexes(self) -> Mapping[str, Index]:
        """By the names the operator gave; a client never names a path."""
        ...

    @property
    def limits(self) -> Limits: ...

    async def embed(self, texts: Sequence[str], ask: Ask) -> Embedded:
        """Through the batcher. Raises `Overloaded` (429) when the queue is full, `TooLate` (504) at the deadline,
        InputError (400/422) for texts that cannot be encoded; cancelled with the request."""
        ...

    async def work(
        self,
        function: Callable[[], T],
        *,
        client: str = "",
        long: bool = False,
        seconds: float | None = None,
    ) -> T:
        """A computation (index search, pairs, explain) on a worker thread, in turns between clients.

        `long`: it may take seconds. One thread is kept free of long ones, and a client may have few of them.
        """
        ...

    def reserve(self, client: str) -> AbstractContextManager[None]:
        """Around a request that needs long work: raises `Overloaded` (429) where its client has too many."""
        ...

    def status(self) -> dict[str, object]:
        """Live figures for the page: throughput, latency by stage, queue, batches, cache, memory, uptime."""
        ...


MOST = 256  # kinds that are remembered; a client may invent prompts without end


@dataclass(frozen=True, eq=False, slots=True)
class BatchKey:
    """Compared by identity: two of equal options only lose the chance to share a batch."""

    options: EncodeOptions
    """For one worker of several."""
    alone: EncodeOptions
    """For a text that has all cores to itself."""
    salt: bytes

    def keys(self, texts: Iterable[str], client: str) -> list[bytes]:
        """Of texts under these options, for one client only.

        What one client sent must not make another's answer faster: by that the other would learn that it was sent.
        """
        person = hashlib.blake2b(client.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return [
            hashlib.blake2b(text.encode(), digest_size=16, salt=self.salt, person=person).digest()
            for text in texts
        ]


class BatchKeys:
    """Each kind made once, so that asking costs a look-up."""

    def __init__(self, threads: int, check: Callable[[EncodeOptions], object]) -> None:
        """`check` refuses options that the model does not have, before anything is made of them."""
        self._threads, self._check = threads, check
        self._known: dict[tuple[object, ...], BatchKey] = {}

    def of(self, ask: Ask) -> BatchKey:
        name = (ask.prompt_name, ask.prompt, ask.normalize, ask.dim)
        kind = self._known.get(name)
        if kind is None:
            if len(self._known) >= MOST:
                self._known.clear()
            kind = _kind(ask, repr(name), self._threads)
            self._check(kind.options)
            self._known[name] = kind
        return kind


def _kind(ask: Ask, name: str, threads: int) -> BatchKey:
    options = EncodeOptions(
        prompt_name=ask.prompt_name,
        prompt=ask.prompt,
        normalize=ask.normalize,
        dim=ask.dim,
        on_long="truncate",
        threads=1,
    )
    salt = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return BatchKey(options, replace(options, threads=threads), salt)
