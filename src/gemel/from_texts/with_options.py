"""A model with its options fixed, and its side of a search: an `Encoder` that is its own settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gemel.model import Model
from gemel.options import EncodeOptions
from gemel.types import Vectors


@dataclass(frozen=True)
class WithOptions:
    """`encode` of the model under these options, as float32."""

    model: Model
    options: EncodeOptions
    side: Literal["query", "document"] | None = None
    """Whose prompt is put in front, if the checkpoint brings one and the options name none."""

    @property
    def dim(self) -> int:
        return self.options.dim or self.model.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        options = self.options
        if self.side is None or options.prompt is not None or options.prompt_name is not None:
            return np.asarray(self.model.encode(texts, options), dtype=np.float32)
        names = [name for name in options.__dataclass_fields__ if name != "prompt_name"]
        changes = {name: getattr(options, name) for name in names}
        encode = self.model.encode_query if self.side == "query" else self.model.encode_document
        return np.asarray(encode(texts, **changes), dtype=np.float32)
