"""How rows lie in files, one entry per `--format`; importing this package fills `FORMATS`."""

from gemel.encode_folder.formats import jsonl, parquet, raw
from gemel.encode_folder.formats.port import FORMATS, Block, Format, Shape

__all__ = ["FORMATS", "Block", "Format", "Shape", "jsonl", "parquet", "raw"]
