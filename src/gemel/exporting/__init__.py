"""A model as one file that other runtimes run alone: ids and mask in, finished vectors out."""

from gemel.exporting.result import Exported
from gemel.exporting.run import export

__all__ = ["Exported", "export"]
