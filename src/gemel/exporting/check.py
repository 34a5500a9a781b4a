"""Does the exported file say what gemel says? Sample texts of many lengths through both, before anything is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.errors import WorkError
from gemel.exporting.onnx_file import OUTPUT
from gemel.exporting.result import Agreement
from gemel.model import Model
from gemel.options import EncodeOptions, Precision
from gemel.types import Vectors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Feed: TypeAlias = Mapping[str, NDArray[np.int64]]
Run: TypeAlias = Callable[[Feed], Vectors]
"""Inputs by name to vectors: the exported file in its own runtime."""

_MOST_APART = 1e-5
_LEAST_COSINE = {"float32": 0.9999, "int8": 0.95}  # int8: what is below is a fault, not a loss of precision
_SAMPLES, _BATCH = 40, 9


def check(
    run: Run, inputs: Sequence[str], tokenizer: Tokenizer, model: Model, options: EncodeOptions
) -> Agreement:
    """How near the two are; an error if that is too far for the precision in `options`."""
    batches = sample_batches()
    texts = [text for batch in batches for text in batch]
    precision: Precision = options.precision or "float32"
    wanted = model.encode(
        texts,
        prompt="",
        on_long="truncate",
        normalize=options.normalize,
        dim=options.dim,
        precision="float32",
    )
    given = np.concatenate([run(feed(tokenizer, batch, inputs)) for batch in batches])
    found = _agreement(given, wanted)
    too_far = precision == "float32" and found.difference > _MOST_APART
    if too_far or not found.cosine >= _LEAST_COSINE[precision]:
        raise WorkError(
            f"the exported graph does not agree with {model.name}: vectors differ by up to {found.difference:.1e} "
            f"and have a cosine of {found.cosine:.4f} at the least. Nothing was written; please report it"
        )
    return found


def feed(tokenizer: Tokenizer, texts: Sequence[str], inputs: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """A padded batch as the graph takes it."""
    encodings = tokenizer.encode_batch(list(texts))
    columns = {
        "input_ids": [encoding.ids for encoding in encodings],
        "attention_mask": [encoding.attention_mask for encoding in encodings],
        "token_type_ids": [encoding.type_ids for encoding in encodings],
    }
    return {name: np.array(columns[name], dtype=np.int64) for name in inputs}


def onnx_run(path: Path) -> Run:
    """The file in ONNX Runtime, as anybody would start it."""
    from gemel.encoder.engines.load_onnxruntime import load_onnxruntime

    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(inputs: Feed) -> Vectors:
        vectors: Vectors = session.run([OUTPUT], dict(inputs))[0]
        return vectors

    return run


def sample_batches() -> list[list[str]]:
    """Texts of many lengths together, then one of about 1,000 tokens, which most models cut; few are with that one."""
    lines = files("gemel").joinpath("data/sentences.txt").read_text(encoding="utf-8").splitlines()
    texts = lines[:_SAMPLES]
    mixed = [*texts, " ".join(texts[:3]), " ".join(texts[:9]), ""]
    batches = [mixed[start : start + _BATCH] for start in range(0, len(mixed), _BATCH)]
    return [*batches, [" ".join(lines[:100]), "a"]]


def _agreement(given: Vectors, wanted: Vectors) -> Agreement:
    lengths = np.linalg.norm(wanted, axis=1, keepdims=True)
    apart = np.abs(given - wanted) / np.maximum(lengths, 1)
    both = np.linalg.norm(given, axis=1) * lengths[:, 0]
    dots = (given * wanted).sum(axis=1)
    # Two vectors of zeros agree; one of them alone does not.
    equal = (given == wanted).all(axis=1)
    cosines = np.where(equal, 1.0, dots / np.where(both > 0, both, 1))
    return Agreement(len(given), float(apart.max()), float(cosines.min()))
