"""Training data: from files, data sets or lists to rows by role; `open_all` and `open_examples` read it."""

from gemel.training.data.read import open_all, open_examples
from gemel.training.data.store import TableExamples

__all__ = ["TableExamples", "open_all", "open_examples"]
