"""Training data: from files, data sets or lists to rows by role. `open.py` is the door."""

from gemel.training.data.open import open_all, open_examples
from gemel.training.data.table import TableExamples

__all__ = ["TableExamples", "open_all", "open_examples"]
