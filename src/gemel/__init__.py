"""gemel: sentence embeddings, end to end. The names below are the public interface; each is loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {  # module: its public names
    "checkpoint.fingerprint": "Fingerprint",
    "cross_model": "CrossModel Ranking load_cross",
    "encoder.canary": "CanaryCheck VectorsChangedWarning",
    "encoder.engines.engine": "KernelWarning",
    "encoder.passages": "PassageVectors",
    "encoder.tokenizer": "PromptWarning TruncationWarning",
    "errors": "GemelError InputError MissingExtra ModelError WorkError",
    "evaluation.evaluate": "evaluate",
    "evaluation.search_comparison": "RetrievalComparison compare_retrieval",
    "evaluation.statistics": "NamedComparison PairedComparison",
    "evaluation.task": "Score Scores",
    "files.document_files": "DocumentFiles FileDocument SkippedFile read_documents",
    "groups.cluster": "Cluster Clusters cluster",
    "groups.dedupe": "DedupeResult DuplicateGroup SparedPair dedupe",
    "index.backup": "SnapshotResult",
    "index.documents": "IndexDocument",
    "index.file_sync": "FileSyncResult sync_files",
    "index.index": "Index",
    "index.ingest": "DocumentLike WriteResult",
    "index.kinds": "IndexExplanation",
    "index.migrate": "MigrateResult",
    "index.open": "IndexSummary RepairResult attach_index drop_index list_indexes open_index repair_index "
    "restore_index",
    "index.port": "Count Store",
    "index.query": "Answer Hit",
    "index.verify": "IndexStats VerifyResult",
    "model": "ConfiguredModel Model load",
    "options": "CrossKeywords CrossOptions EncodeKeywords EncodeOptions SparseKeywords SparseOptions",
    "texts.encode_folder": "EncodedFolder FolderProgress FolderResult encode_to_folder read_folder",
    "texts.explanation": "Explanation explain",
    "texts.late_model": "LateExplanation LateModel TokenMatch load_late",
    "texts.m3_model": "M3Model M3Vectors load_m3",
    "texts.search": "Relations TextHits TextPairs find_pairs search_texts",
    "texts.sparse_model": "SparseExplanation SparseModel WordMatch load_sparse",
    "training.distill.distill": "distill",
    "training.distill.job": "DistillResult",
    "training.distill.teacher": "StudentAgreement",
    "training.negatives": "NegativesResult mine_negatives",
    "training.options": "TrainOptions",
    "training.run": "TrainResult",
    "training.train": "train",
    "types": "EncodeReport Encoder TokenEmbeddings",
    "vectors.calibration": "Calibration PrecisionThreshold calibrate precision_threshold",
    "vectors.inverted": "InvertedFile",
    "vectors.maxsim": "Codebook MultiVectors maxsim",
    "vectors.pair_scan": "Pairs",
    "vectors.pairs": "similar_pairs",
    "vectors.search": "Hits quantize rescore search",
    "vectors.similarity": "cosine normalize",
    "vectors.sparse": "SparseVectors",
    "vectors.token_index": "TokenIndex",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
_PACKAGES = ("compat", "evaluation", "sklearn")  # used as `gemel.compat.X` after `import gemel`
_COMPAT = ("CrossEncoder", "InputExample", "SentenceTransformer", "losses", "util")  # written here by habit
__all__ = sorted(_MODULES)  # noqa: PLE0605

if TYPE_CHECKING:
    from gemel.checkpoint.fingerprint import Fingerprint as Fingerprint
    from gemel.cross_model import CrossModel as CrossModel
    from gemel.cross_model import Ranking as Ranking
    from gemel.cross_model import load_cross as load_cross
    from gemel.encoder.canary import CanaryCheck as CanaryCheck
    from gemel.encoder.canary import VectorsChangedWarning as VectorsChangedWarning
    from gemel.encoder.engines.engine import KernelWarning as KernelWarning
    from gemel.encoder.passages import PassageVectors as PassageVectors
    from gemel.encoder.tokenizer import PromptWarning as PromptWarning
    from gemel.encoder.tokenizer import TruncationWarning as TruncationWarning
    from gemel.errors import GemelError as GemelError
    from gemel.errors import InputError as InputError
    from gemel.errors import MissingExtra as MissingExtra
    from gemel.errors import ModelError as ModelError
    from gemel.errors import WorkError as WorkError
    from gemel.evaluation.evaluate import evaluate as evaluate
    from gemel.evaluation.search_comparison import RetrievalComparison as RetrievalComparison
    from gemel.evaluation.search_comparison import compare_retrieval as compare_retrieval
    from gemel.evaluation.statistics import NamedComparison as NamedComparison
    from gemel.evaluation.statistics import PairedComparison as PairedComparison
    from gemel.evaluation.task import Score as Score
    from gemel.evaluation.task import Scores as Scores
    from gemel.files.document_files import DocumentFiles as DocumentFiles
    from gemel.files.document_files import FileDocument as FileDocument
    from gemel.files.document_files import SkippedFile as SkippedFile
    from gemel.files.document_files import read_documents as read_documents
    from gemel.groups.cluster import Cluster as Cluster
    from gemel.groups.cluster import Clusters as Clusters
    from gemel.groups.cluster import cluster as cluster
    from gemel.groups.dedupe import DedupeResult as DedupeResult
    from gemel.groups.dedupe import DuplicateGroup as DuplicateGroup
    from gemel.groups.dedupe import SparedPair as SparedPair
    from gemel.groups.dedupe import dedupe as dedupe
    from gemel.index.backup import SnapshotResult as SnapshotResult
    from gemel.index.documents import IndexDocument as IndexDocument
    from gemel.index.file_sync import FileSyncResult as FileSyncResult
    from gemel.index.file_sync import sync_files as sync_files
    from gemel.index.index import Index as Index
    from gemel.index.ingest import DocumentLike as DocumentLike
    from gemel.index.ingest import WriteResult as WriteResult
    from gemel.index.kinds import IndexExplanation as IndexExplanation
    from gemel.index.migrate import MigrateResult as MigrateResult
    from gemel.index.open import IndexSummary as IndexSummary
    from gemel.index.open import RepairResult as RepairResult
    from gemel.index.open import attach_index as attach_index
    from gemel.index.open import drop_index as drop_index
    from gemel.index.open import list_indexes as list_indexes
    from gemel.index.open import open_index as open_index
    from gemel.index.open import repair_index as repair_index
    from gemel.index.open import restore_index as restore_index
    from gemel.index.port import Count as Count
    from gemel.index.port import Store as Store
    from gemel.index.query import Answer as Answer
    from gemel.index.query import Hit as Hit
    from gemel.index.verify import IndexStats as IndexStats
    from gemel.index.verify import VerifyResult as VerifyResult
    from gemel.model import ConfiguredModel as ConfiguredModel
    from gemel.model import Model as Model
    from gemel.model import load as load
    from gemel.options import CrossKeywords as CrossKeywords
    from gemel.options import CrossOptions as CrossOptions
    from gemel.options import EncodeKeywords as EncodeKeywords
    from gemel.options import EncodeOptions as EncodeOptions
    from gemel.options import SparseKeywords as SparseKeywords
    from gemel.options import SparseOptions as SparseOptions
    from gemel.texts.encode_folder import EncodedFolder as EncodedFolder
    from gemel.texts.encode_folder import FolderProgress as FolderProgress
    from gemel.texts.encode_folder import FolderResult as FolderResult
    from gemel.texts.encode_folder import encode_to_folder as encode_to_folder
    from gemel.texts.encode_folder import read_folder as read_folder
    from gemel.texts.explanation import Explanation as Explanation
    from gemel.texts.explanation import explain as explain
    from gemel.texts.late_model import LateExplanation as LateExplanation
    from gemel.texts.late_model import LateModel as LateModel
    from gemel.texts.late_model import TokenMatch as TokenMatch
    from gemel.texts.late_model import load_late as load_late
    from gemel.texts.m3_model import M3Model as M3Model
    from gemel.texts.m3_model import M3Vectors as M3Vectors
    from gemel.texts.m3_model import load_m3 as load_m3
    from gemel.texts.search import Relations as Relations
    from gemel.texts.search import TextHits as TextHits
    from gemel.texts.search import TextPairs as TextPairs
    from gemel.texts.search import find_pairs as find_pairs
    from gemel.texts.search import search_texts as search_texts
    from gemel.texts.sparse_model import SparseExplanation as SparseExplanation
    from gemel.texts.sparse_model import SparseModel as SparseModel
    from gemel.texts.sparse_model import WordMatch as WordMatch
    from gemel.texts.sparse_model import load_sparse as load_sparse
    from gemel.training.distill.distill import distill as distill
    from gemel.training.distill.job import DistillResult as DistillResult
    from gemel.training.distill.teacher import StudentAgreement as StudentAgreement
    from gemel.training.negatives import NegativesResult as NegativesResult
    from gemel.training.negatives import mine_negatives as mine_negatives
    from gemel.training.options import TrainOptions as TrainOptions
    from gemel.training.run import TrainResult as TrainResult
    from gemel.training.train import train as train
    from gemel.types import Encoder as Encoder
    from gemel.types import EncodeReport as EncodeReport
    from gemel.types import TokenEmbeddings as TokenEmbeddings
    from gemel.vectors.calibration import Calibration as Calibration
    from gemel.vectors.calibration import PrecisionThreshold as PrecisionThreshold
    from gemel.vectors.calibration import calibrate as calibrate
    from gemel.vectors.calibration import precision_threshold as precision_threshold
    from gemel.vectors.inverted import InvertedFile as InvertedFile
    from gemel.vectors.maxsim import Codebook as Codebook
    from gemel.vectors.maxsim import MultiVectors as MultiVectors
    from gemel.vectors.maxsim import maxsim as maxsim
    from gemel.vectors.pair_scan import Pairs as Pairs
    from gemel.vectors.pairs import similar_pairs as similar_pairs
    from gemel.vectors.search import Hits as Hits
    from gemel.vectors.search import quantize as quantize
    from gemel.vectors.search import rescore as rescore
    from gemel.vectors.search import search as search
    from gemel.vectors.similarity import cosine as cosine
    from gemel.vectors.similarity import normalize as normalize
    from gemel.vectors.sparse import SparseVectors as SparseVectors
    from gemel.vectors.token_index import TokenIndex as TokenIndex


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute can be anything
    if name in _MODULES:
        return getattr(import_module(f"gemel.{_MODULES[name]}"), name)
    if name in _PACKAGES:
        return import_module(f"gemel.{name}")
    if name in _COMPAT:
        return getattr(import_module("gemel.compat"), name)
    from gemel.errors import NOT_NAMES, did_you_mean

    hint = f" {NOT_NAMES[name]}" if name in NOT_NAMES else did_you_mean(name, __all__)
    raise AttributeError(f"module 'gemel' has no attribute {name!r}{'.' if hint else ''}{hint}")


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
