"""A model as one graph file that other runtimes run alone: token ids and mask in, finished vectors out."""

from gemel.export.write import ExportResult, export

__all__ = ["ExportResult", "export"]
