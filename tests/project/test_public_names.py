"""What `gemel` offers, as a literal list: a change to the surface is a visible diff here."""

import ast
import inspect
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import gemel

PUBLIC = [
    "Answer",
    "Calibration",
    "CanaryCheck",
    "Cluster",
    "Clusters",
    "Codebook",
    "ConfiguredModel",
    "Count",
    "CrossKeywords",
    "CrossModel",
    "CrossOptions",
    "DedupeResult",
    "DistillResult",
    "DocumentFiles",
    "DocumentLike",
    "DuplicateGroup",
    "EncodeKeywords",
    "EncodeOptions",
    "EncodeReport",
    "EncodedFolder",
    "Encoder",
    "Explanation",
    "FileDocument",
    "FileSyncResult",
    "Fingerprint",
    "FolderProgress",
    "FolderResult",
    "GemelError",
    "Hit",
    "Hits",
    "Index",
    "IndexDocument",
    "IndexExplanation",
    "IndexStats",
    "IndexSummary",
    "InputError",
    "InvertedFile",
    "KernelWarning",
    "LateExplanation",
    "LateModel",
    "M3Model",
    "M3Vectors",
    "MigrateResult",
    "MissingExtra",
    "Model",
    "ModelError",
    "MultiVectors",
    "NamedComparison",
    "NegativesResult",
    "PairedComparison",
    "Pairs",
    "PassageVectors",
    "PrecisionThreshold",
    "PromptWarning",
    "Ranking",
    "Relations",
    "RepairResult",
    "RetrievalComparison",
    "Score",
    "Scores",
    "SkippedFile",
    "SnapshotResult",
    "SparedPair",
    "SparseExplanation",
    "SparseKeywords",
    "SparseModel",
    "SparseOptions",
    "SparseVectors",
    "Store",
    "StudentAgreement",
    "TextHits",
    "TextPairs",
    "TokenEmbeddings",
    "TokenIndex",
    "TokenMatch",
    "TrainOptions",
    "TrainResult",
    "TruncationWarning",
    "VectorsChangedWarning",
    "VerifyResult",
    "WordMatch",
    "WorkError",
    "WriteResult",
    "attach_index",
    "calibrate",
    "cluster",
    "compare_retrieval",
    "cosine",
    "dedupe",
    "distill",
    "drop_index",
    "encode_to_folder",
    "evaluate",
    "explain",
    "find_pairs",
    "list_indexes",
    "load",
    "load_cross",
    "load_late",
    "load_m3",
    "load_sparse",
    "maxsim",
    "mine_negatives",
    "normalize",
    "open_index",
    "precision_threshold",
    "quantize",
    "read_documents",
    "read_folder",
    "repair_index",
    "rescore",
    "restore_index",
    "search",
    "search_texts",
    "similar_pairs",
    "sync_files",
    "train",
]

# Internal classes in the annotations of public objects, which a user neither creates nor unpacks.
INTERNAL = {
    "Anchors",
    "CentroidCodes",
    "Check",
    "Engine",
    "Header",
    "KindModel",
    "ModelSide",
    "PreparedPassage",
    "PreparedTexts",
    "ProbabilityCurve",
    "Reranker",
    "Sample",
    "Table",
    "Tail",
    "TextTokenizer",
}


def test_the_public_names_are_these():
    assert sorted(gemel.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_exists_and_is_documented(name):
    thing = getattr(gemel, name)
    assert thing.__doc__, f"gemel.{name} has no docstring"
    assert callable(thing)


def test_the_version_is_that_of_the_package():
    assert re.fullmatch(r"\d+\.\d+\.\d+", gemel.__version__)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == gemel.__version__


def test_dir_shows_the_public_names():
    assert set(PUBLIC) <= set(dir(gemel))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'encoder_of_dreams'"):
        _ = gemel.encoder_of_dreams


def test_a_public_function_is_not_hidden_by_a_module_of_its_name():
    """Importing gemel.x makes `gemel.x` the module: a module must not be called as a public name is."""
    modules = {path.stem for path in Path(gemel.__file__).parent.iterdir()}
    assert not modules & set(gemel.__all__)


def annotated(thing):
    """The functions of a public thing, and itself if its fields are annotated."""
    yield thing
    if inspect.isclass(thing):
        for name, member in inspect.getmembers(thing):
            function = member.fget if isinstance(member, property) else member
            if not name.startswith("_") and (inspect.isfunction(function) or inspect.ismethod(function)):
                yield function


def classes_of(thing):
    """The classes of gemel that the annotations of a function or class name."""
    module = sys.modules[thing.__module__]
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for annotation in getattr(thing, "__annotations__", {}).values():
        for name in re.findall(r"[A-Za-z_][\w.]*", str(annotation)):
            home, original = imported.get(name, (module.__name__, name))
            result = getattr(import_module(home), original, None) if home.startswith("gemel") else None
            if inspect.isclass(result) and result.__module__.startswith("gemel"):
                yield result.__name__


@pytest.mark.parametrize("name", PUBLIC)
def test_the_types_of_public_functions_are_public(name):
    used = {cls for each in annotated(getattr(gemel, name)) for cls in classes_of(each) if cls[0] != "_"}
    assert used <= set(PUBLIC) | INTERNAL, f"export from gemel: {sorted(used - set(PUBLIC) - INTERNAL)}"
