"""gemel: sentence embeddings, end to end. The names below are the public interface; each is loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Answer": "index.types",
    "Calibration": "calibration",
    "Clusters": "clusters",
    "CrossModel": "cross_model",
    "Deduped": "near_duplicates",
    "Distilled": "distillation.result",
    "EncodeOptions": "options",
    "EncodeReport": "types",
    "EncodedFolder": "encode_folder",
    "Explanation": "explanation",
    "Fingerprint": "checkpoint.fingerprint",
    "GemelError": "errors",
    "Hits": "nearest",
    "Index": "index.index",
    "InputError": "errors",
    "MissingExtra": "errors",
    "Model": "model",
    "ModelError": "errors",
    "Pairs": "pairs",
    "TrainOptions": "training.options",
    "Trained": "training.run",
    "TruncationWarning": "text.long_texts",
    "WorkError": "errors",
    "calibrate": "calibration",
    "cluster": "clusters",
    "dedupe": "near_duplicates",
    "distill": "distillation.run",
    "encode_to_folder": "encode_folder",
    "evaluate": "evaluate_models",
    "explain": "explanation",
    "load": "model",
    "load_cross": "cross_model",
    "open_index": "index.opening",
    "quantize": "small_vectors",
    "read_folder": "encode_folder",
    "repair_index": "index.repairing",
    "rescore": "small_vectors",
    "search": "nearest",
    "similar_pairs": "pairs",
    "train": "train_models",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605

if TYPE_CHECKING:
    from gemel.calibration import Calibration as Calibration
    from gemel.calibration import calibrate as calibrate
    from gemel.checkpoint.fingerprint import Fingerprint as Fingerprint
    from gemel.clusters import Clusters as Clusters
    from gemel.clusters import cluster as cluster
    from gemel.cross_model import CrossModel as CrossModel
    from gemel.cross_model import load_cross as load_cross
    from gemel.distillation.result import Distilled as Distilled
    from gemel.distillation.run import distill as distill
    from gemel.encode_folder import EncodedFolder as EncodedFolder
    from gemel.encode_folder import encode_to_folder as encode_to_folder
    from gemel.encode_folder import read_folder as read_folder
    from gemel.errors import GemelError as GemelError
    from gemel.errors import InputError as InputError
    from gemel.errors import MissingExtra as MissingExtra
    from gemel.errors import ModelError as ModelError
    from gemel.errors import WorkError as WorkError
    from gemel.evaluate_models import evaluate as evaluate
    from gemel.explanation import Explanation as Explanation
    from gemel.explanation import explain as explain
    from gemel.index.index import Index as Index
    from gemel.index.opening import open_index as open_index
    from gemel.index.repairing import repair_index as repair_index
    from gemel.index.types import Answer as Answer
    from gemel.model import Model as Model
    from gemel.model import load as load
    from gemel.near_duplicates import Deduped as Deduped
    from gemel.near_duplicates import dedupe as dedupe
    from gemel.nearest import Hits as Hits
    from gemel.nearest import search as search
    from gemel.options import EncodeOptions as EncodeOptions
    from gemel.pairs import Pairs as Pairs
    from gemel.pairs import similar_pairs as similar_pairs
    from gemel.small_vectors import quantize as quantize
    from gemel.small_vectors import rescore as rescore
    from gemel.text.long_texts import TruncationWarning as TruncationWarning
    from gemel.train_models import train as train
    from gemel.training.options import TrainOptions as TrainOptions
    from gemel.training.run import Trained as Trained
    from gemel.types import EncodeReport as EncodeReport


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute can be anything
    if name not in _HOMES:
        raise AttributeError(f"module 'gemel' has no attribute {name!r}")
    return getattr(import_module(f"gemel.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
