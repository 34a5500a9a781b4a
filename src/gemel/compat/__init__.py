"""The calls of sentence-transformers on top of gemel, for code that is on its way over: docs/migrating.md.

    from gemel.compat import SentenceTransformer, util

Same names, same arguments, same shapes; arrays where they give tensors, unless tensors come in or are asked for.
"""

from __future__ import annotations

from gemel.compat import util
from gemel.compat.model import SentenceTransformer as SentenceTransformer

__all__ = ["SentenceTransformer", "util"]
