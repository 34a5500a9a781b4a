"""What texts may be encoded together and share a vector: those asked for with the same options."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gemel.options import EncodeOptions
from gemel.serve.port import Ask

MOST = 256  # kinds that are remembered; a client may invent prompts without end


@dataclass(frozen=True, eq=False, slots=True)
class Kind:
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


class Kinds:
    """Each kind made once, so that asking costs a look-up."""

    def __init__(self, threads: int, check: Callable[[EncodeOptions], object]) -> None:
        """`check` refuses options that the model does not have, before anything is made of them."""
        self._threads, self._check = threads, check
        self._known: dict[tuple[object, ...], Kind] = {}

    def of(self, ask: Ask) -> Kind:
        name = (ask.prompt_name, ask.prompt, ask.normalize, ask.dim)
        kind = self._known.get(name)
        if kind is None:
            if len(self._known) >= MOST:
                self._known.clear()
            kind = _kind(ask, repr(name), self._threads)
            self._check(kind.options)
            self._known[name] = kind
        return kind


def _kind(ask: Ask, name: str, threads: int) -> Kind:
    options = EncodeOptions(
        prompt_name=ask.prompt_name,
        prompt=ask.prompt,
        normalize=ask.normalize,
        dim=ask.dim,
        on_long="truncate",
        threads=1,
    )
    salt = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return Kind(options, replace(options, threads=threads), salt)
