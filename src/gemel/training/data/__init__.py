"""Training data: from files, data sets or lists to rows by role; `open_all` and `open_examples` read it."""

from gemel.training.data.read import open_all, open_examples

__all__ = ["open_all", "open_examples"]
