"""`Index`: documents that are encoded, stored, found, and bound to the model that made their vectors."""

from __future__ import annotations


class Index:
    """Being written; its interface is in the port and types beside it."""
