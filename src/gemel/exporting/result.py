"""What an export gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gemel.options import Precision

Format = Literal["onnx", "openvino"]


@dataclass(frozen=True)
class Agreement:
    """How near the exported file's vectors are to gemel's own, on sample texts of many lengths."""

    texts: int
    difference: float
    """The largest difference of a number, where vectors have length 1 or are scaled to at most that."""
    cosine: float
    """The smallest cosine of the two vectors of a text."""


@dataclass(frozen=True)
class Exported:
    """An export that was checked and is in its place."""

    path: Path
    """The folder, or the .onnx file."""
    files: tuple[str, ...]
    """Names of the files that were written, sorted."""
    to: Format
    precision: Precision
    inputs: tuple[str, ...]
    output: str
    dim: int
    max_length: int | None
    size: int
    """Bytes of all files."""
    agreement: Agreement
    prompts: dict[str, str]
    """Put one of these in front of a text where the model asks for it; no graph does."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `gemel export --json` prints them."""
        return {
            "path": str(self.path),
            "files": list(self.files),
            "to": self.to,
            "precision": self.precision,
            "inputs": list(self.inputs),
            "output": self.output,
            "dim": self.dim,
            "max_length": self.max_length,
            "size": self.size,
            "texts_checked": self.agreement.texts,
            "difference": self.agreement.difference,
            "cosine": self.agreement.cosine,
            "prompts": self.prompts,
        }
