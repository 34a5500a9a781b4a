"""modules.json of a checkpoint in the layout of sentence-transformers: which modules it has, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gemel.checkpoint.architecture import first_class, has_task_folders
from gemel.checkpoint.files import inside, read_json, read_object, read_object_if_there
from gemel.checkpoint.head import (
    FLOW,
    Dense,
    PoolingConfig,
    read_dense,
    read_flow,
    read_layer_norm,
    read_pooling,
)
from gemel.checkpoint.settings import LATE_TYPES, refuse_unknown
from gemel.errors import ModelError

_NORMALIZE_KEYS = frozenset({"module_input_name", "module_output_name"})
"""config.json of a Normalize."""

# The older names are classes of early releases, with the same files.
_TRANSFORMERS = {"Transformer", "BERT", "RoBERTa", "DistilBERT", "ALBERT", "CamemBERT", "XLMRoBERTa"}

_KNOWN = (
    "Transformer", "StaticEmbedding", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout", "Router", "LogitScore",
)  # fmt: skip

_UNSUPPORTED = {
    **dict.fromkeys(
        ("WordEmbeddings", "WordWeights", "BoW"),
        "it works on whole words, which such models find by rules of their own",
    ),
    **dict.fromkeys(("CNN", "LSTM"), "it runs a second network over the vectors of the tokens"),
    "WeightedLayerPooling": "it mixes the hidden states of several layers, and gemel computes those of the last",
    "CLIPModel": "it encodes images",
}
"""Modules of sentence-transformers that are not read, and why."""

_SPARSE = ("MLMTransformer", "SpladePooling", "SparseStaticEmbedding", "SparseAutoEncoder")
"""Modules of sparse encoders, which `checkpoint/sparse.py` reads."""

_ROUTERS = {"Router", "Asym"}

_ROUTER_KEYS = frozenset({"default_route", "allow_empty_key"})
"""`parameters` of a Router: which side a text without one takes; gemel takes none, `gemel.compat` follows it."""

_ROUTES = {"query": ("query",), "document": ("document", "passage", "corpus", "doc")}
"""What the routes of queries and documents are called."""

_LAYERS = {"Dense": read_dense, "LayerNorm": read_layer_norm, "Flow": read_flow}
"""Modules between Pooling and Normalize."""


@dataclass(frozen=True)
class Steps:
    """The first module, and what comes after it."""

    kind: Literal["transformer", "static"]
    folder: Path
    pooling: PoolingConfig | None
    dense: tuple[Dense, ...]
    dense_folders: tuple[Path, ...]
    normalize: bool
    logit_score: Path | None = None
    """The folder of the module that scores the answers of a language model (cross-encoders only)."""
    masked: bool = False
    """The head of a masked language model comes after the network (sparse encoders only)."""


@dataclass(frozen=True)
class SideSteps:
    """The steps of each side of a search; queries and documents have the same ones unless modules.json has a Router."""

    document: Steps
    query: Steps | None = None
    default: Literal["query", "document"] | None = None
    """That of a text without a side in sentence-transformers."""


class SideModules(NamedTuple):
    """(kind, folder) of the modules of each side, in their order."""

    document: list[tuple[str, Path]]
    query: list[tuple[str, Path]] | None = None
    default: Literal["query", "document"] | None = None


def is_late_model(folder: Path) -> bool:
    """True for late interaction (ColBERT): the model in `folder` makes a vector of each token of a text."""
    settings = read_object_if_there(folder / "config_sentence_transformers.json")
    if settings.get("model_type") in LATE_TYPES:
        return True
    if not (folder / "modules.json").is_file():
        return first_class(read_object_if_there(folder / "config.json")) == "HF_ColBERT"
    listed = read_json(folder / "modules.json")
    types = (
        [each.get("type") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    )
    return any(str(kind).startswith("pylate.") for kind in types)  # early releases wrote no model_type


def read_side_steps(folder: Path) -> SideSteps:
    """The steps that modules.json lists, and those of queries where a Router is among them."""
    sides = read_side_modules(folder)
    document = steps_of(folder, sides.document)
    if sides.query is None:
        return SideSteps(task_steps(document.folder) if _pools_itself(document) else document)
    return SideSteps(document, steps_of(folder, sides.query), sides.default)


def read_side_modules(folder: Path, *, sparse: bool = False) -> SideModules:
    """The modules that modules.json lists, with those of a Router in its place; `sparse`: of a sparse encoder."""
    modules = _modules(folder, sparse)
    at = next((number for number, (kind, _) in enumerate(modules) if kind in _ROUTERS), None)
    if at is None:
        return SideModules(modules)
    router = modules[at][1]
    paths = [router / name for name in ("router_config.json", "config.json")]
    path = next((path for path in paths if path.is_file()), paths[0])
    config = read_object(path)
    types, structure, settings = (config.get(key) or {} for key in ("types", "structure", "parameters"))
    if not all(isinstance(part, dict) for part in (types, structure, settings)):
        raise ModelError(f"{path}: 'types', 'structure' and 'parameters' must be objects")
    refuse_unknown(path, settings, _ROUTER_KEYS, where="parameters")

    def side(name: str) -> list[tuple[str, Path]]:
        names = _route(path, structure, _ROUTES[name])
        route = [(_kind(folder, types.get(name), sparse), inside(router, name)) for name in names]
        return [*modules[:at], *route, *modules[at + 1 :]]

    return SideModules(side("document"), side("query"), _default_side(structure, settings))


def _default_side(
    structure: Mapping[str, Any], settings: Mapping[str, Any]
) -> Literal["query", "document"] | None:
    """The side of `default_route`, or of the first route unless `allow_empty_key` is false."""
    route = settings.get("default_route")
    if route is None and settings.get("allow_empty_key", True):
        route = next(iter(structure))
    if route in _ROUTES["query"]:
        return "query"
    return "document" if route in _ROUTES["document"] else None


def _pools_itself(steps: Steps) -> bool:
    """True for the one module of Jina Embeddings v5, which also pools and normalizes."""
    return (
        steps.kind == "transformer"
        and steps.pooling is None
        and has_task_folders(read_object_if_there(steps.folder / "config.json"))
    )


def task_steps(folder: Path) -> Steps:
    """Of Jina Embeddings v5: a text's vector is that of its last token, normalized."""
    return Steps("transformer", folder, PoolingConfig(("last",)), (), (), True)


def _route(path: Path, structure: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The folders of the modules of one side."""
    name = next((name for name in names if name in structure), None)
    modules = structure.get(name or "")
    if not isinstance(modules, list) or not modules or not all(isinstance(each, str) for each in modules):
        raise ModelError(
            f"{path}: no route {names[0]!r} with a list of modules. Routes: {', '.join(structure)}. Only queries and "
            "documents are supported"
        )
    return modules


def steps_of(folder: Path, modules: Sequence[tuple[str, Path]]) -> Steps:
    """The modules in their order: Transformer, Pooling, then any Dense, LayerNorm or Flow, then Normalize."""
    first: tuple[Literal["transformer", "static"], Path] | None = None
    pooling: PoolingConfig | None = None
    dense: list[tuple[str, Path]] = []
    normalize, logit_score = False, None
    for kind, path in modules:
        misplaced = (
            normalize or kind in _ROUTERS or (first is None) != (kind in {*_TRANSFORMERS, "StaticEmbedding"})
        )
        if kind == "Dropout" or (kind == "Normalize" and normalize):
            continue  # no effect on a trained model
        late = pooling is not None or dense or (first is not None and first[0] == "static")
        if misplaced or (kind == "Pooling" and late):
            raise ModelError(
                f"{folder}: module {kind!r} has an unsupported position in modules.json. "
                "The supported order: Transformer or StaticEmbedding, Pooling, any Dense, LayerNorm or Flow, Normalize"
            )
        if first is None:
            first = ("static" if kind == "StaticEmbedding" else "transformer", path)
        elif kind == "Pooling":
            pooling = read_pooling(path)
        elif kind in _LAYERS:
            dense.append((kind, path))
        elif kind == "LogitScore":
            logit_score = path
        else:
            _check_normalize(path)
            normalize = True
    if first is None:
        raise ModelError(f"{folder / 'modules.json'} lists no module")
    layers = tuple(_LAYERS[kind](folder, path) for kind, path in dense)
    folders = tuple(path for _, path in dense)
    return Steps(first[0], first[1], pooling, layers, folders, normalize, logit_score)


def _modules(folder: Path, sparse: bool) -> list[tuple[str, Path]]:
    """(last word of the type, folder) of each module; old and new class paths end in the same word."""
    listed = read_json(folder / "modules.json")
    modules: list[tuple[str, Path]] = []
    for entry in listed if isinstance(listed, list) else [None]:
        kind, path = (entry.get("type"), entry.get("path", "")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ModelError(
                f"{folder / 'modules.json'} must be a list of modules, each with a type and a path"
            )
        own = inside(folder, path)
        word = "Transformer" if _is_task_transformer(kind, own) else _kind(folder, kind, sparse)
        modules.append((word, own))
    return modules


def _is_task_transformer(kind: str, folder: Path) -> bool:
    """True for the module of Jina Embeddings v3 and v5: a Transformer that hands the task to the network."""
    code = read_object_if_there(folder / "config.json").get("auto_map")
    model = code.get("AutoModel") if isinstance(code, dict) else None
    return kind == "custom_st.Transformer" and str(model).endswith(_TASK_MODELS)


_TASK_MODELS = ("modeling_lora.XLMRobertaLoRA", "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model")


def _kind(folder: Path, kind: object, sparse: bool) -> str:
    """The last word of the type of a module; a type that is not supported is refused."""
    package, _, rest = str(kind).partition(".")
    word = rest.rpartition(".")[2]
    # A class of another package may have a known name and run any code.
    theirs = package == "sentence_transformers" and word in _TRANSFORMERS | _ROUTERS | set(_KNOWN + _SPARSE)
    if theirs and word in _SPARSE and not sparse:
        raise ModelError(
            f"{folder}: the module {word!r} is part of a sparse encoder, which gives weights of words instead of dense "
            "vectors. Load it with gemel.load_sparse(...)"
        )
    if not theirs and package == "sentence_transformers" and word in _UNSUPPORTED:
        raise ModelError(
            f"{folder}: the module {word!r} is not supported: {_UNSUPPORTED[word]}. "
            "Give a model of a Transformer or a StaticEmbedding"
        )
    if not theirs and kind != FLOW:
        known = ", ".join(_KNOWN)
        raise ModelError(
            f"{folder}: unknown module {kind!r}. Known, of sentence_transformers: {known}; and {FLOW}"
        )
    return word


def _check_normalize(folder: Path) -> None:
    config = read_object_if_there(folder / "config.json")
    refuse_unknown(folder / "config.json", config, _NORMALIZE_KEYS)
    for key, value in config.items():
        if key in ("module_input_name", "module_output_name") and value not in (None, "sentence_embedding"):
            raise ModelError(f"{folder}: normalizing {value!r} is not supported, only the pooled vector")


def plain_steps(folder: Path, notes: list[str]) -> Steps:
    """A folder without modules.json: a model2vec table, or a network without a pooling."""
    config = read_object(folder / "config.json")
    if _is_model2vec(config):
        return Steps("static", folder, None, (), (), config.get("normalize") is True)
    if has_task_folders(config):
        return task_steps(folder)
    if _is_causal(config):
        notes.append(
            "plain language model without modules.json: a text's vector is that of its last token, which alone has "
            "seen the whole text, and not normalized"
        )
        return Steps("transformer", folder, PoolingConfig(("last",)), (), (), False)
    notes.append("plain encoder without modules.json: token vectors are averaged (mean) and not normalized")
    return Steps("transformer", folder, PoolingConfig(), (), (), False)


def _is_causal(config: Mapping[str, Any]) -> bool:
    """True for a decoder, in which a token sees only those before it: a ...ForCausalLM unless `is_causal` is false."""
    return first_class(config).endswith("ForCausalLM") and config.get("is_causal") is not False


def _is_model2vec(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "model2vec" or config.get("architectures") == ["StaticModel"]
