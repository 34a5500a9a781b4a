"""The digest of a document: equal digests, nothing to encode and nothing to write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import date

from gemel.index.port import FieldValue
from gemel.types import Vectors


def digest_of(
    text: str, fields: Mapping[str, FieldValue], passage_tokens: int | None, vector: Vectors | None = None
) -> str:
    """sha256 (hex) of all that is stored of a document.

    Fields that are null do not count, so a new column changes no digest. `vector`: one that the caller gave, at
    length 1; None: the model made it from the text.
    """
    said = [text, {name: value for name, value in fields.items() if value is not None}, passage_tokens]
    hashed = hashlib.sha256(
        json.dumps(said, sort_keys=True, separators=(",", ":"), default=_iso).encode("ascii")
    )
    if vector is not None:
        hashed.update(vector.astype("<f4").tobytes())
    return hashed.hexdigest()


def _iso(value: date) -> str:
    return value.isoformat()
