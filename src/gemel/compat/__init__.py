"""The API of sentence-transformers on top of gemel, for code that is being migrated: docs/migrating.md.

    from gemel.compat import CrossEncoder, InputExample, SentenceTransformer, evaluation, losses, util

Names, arguments and shapes are the same. Results are arrays, unless tensors are given or requested.
"""

from __future__ import annotations

from gemel.compat import evaluation, losses, util
from gemel.compat.losses import InputExample as InputExample
from gemel.compat.model import CrossEncoder as CrossEncoder
from gemel.compat.model import SentenceTransformer as SentenceTransformer

__all__ = ["CrossEncoder", "InputExample", "SentenceTransformer", "evaluation", "losses", "util"]
